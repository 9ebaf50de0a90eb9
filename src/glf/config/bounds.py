"""Numbers that cannot be meant, refused before anything is read or written."""

from typing import Any


def at_least(config: Any, **least: float) -> None:
    """Every one of these settings, where it is given, is no smaller than this.

    >>> from types import SimpleNamespace
    >>> at_least(SimpleNamespace(epochs=0), epochs=1)
    Traceback (most recent call last):
    ValueError: epochs must be at least 1, got 0
    """
    for name, bound in least.items():
        value = getattr(config, name)
        if value is not None and not value >= bound:  # not a number is no larger than anything either
            raise ValueError(f"{name} must be at least {bound:g}, got {value}")


def above(config: Any, **bounds: float) -> None:
    """Every one of these settings, and every part of it where it has several, is larger than this.

    >>> from types import SimpleNamespace
    >>> above(SimpleNamespace(lr=0.0), lr=0)
    Traceback (most recent call last):
    ValueError: lr must be above 0, got 0.0
    """
    for name, bound in bounds.items():
        value = getattr(config, name)
        values = value if isinstance(value, tuple) else (value,)
        if value is not None and not (values and all(one > bound for one in values)):
            raise ValueError(f"{name} must be above {bound:g}, got {value}")
