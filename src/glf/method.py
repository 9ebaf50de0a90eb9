"""What a row of the table of methods says."""

from collections.abc import Callable
from dataclasses import dataclass, field

from glf.config import nearest
from glf.nn.heads import Heads
from glf.objective import Objective


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row. ``objective(**options)`` builds it; ``options`` holds the defaults of what can be set, whole numbers
    where only those make sense."""

    name: str
    title: str
    paper: str
    objective: Callable[..., Objective]
    options: dict[str, float] = field(default_factory=dict)
    views: str = "wmse"  # a recipe of data/views.py
    heads: Heads
    many_views: bool = True  # or it is defined for two
    teacher: tuple[float, float] | None = None  # first and last momentum of the moving average
    architecture: str = ""  # what constrains it beside the loss
    scale: float = 1.0

    def build(self, **options: float) -> Objective:
        """The objective, with options that the row knows."""
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise ValueError(f"{self.name} has no option {name!r}{nearest(name, self.options)} (it has: {known})")
            if isinstance(self.options[name], int) and not float(value).is_integer():
                raise ValueError(f"{self.name} takes a whole number for {name}, not {value:g}")
        given = {name: type(self.options[name])(value) for name, value in options.items()}
        return self.objective(**{**self.options, **given})
