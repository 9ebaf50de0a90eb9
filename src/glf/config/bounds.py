"""The bounds of every number among the options, in one table, and the check of all options' types.

Every config calls ``check_options`` when it is made: before any data are read, and also for a saved config.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, SupportsFloat, get_type_hints

from glf.config.fits import misfit


class Bounds(NamedTuple):
    """The values that an option may have. ``above`` and ``below`` are excluded, ``least`` and ``most`` included."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def violated(self, value: float) -> str:
        """The bound that a value does not keep, in words; empty if it is within all."""
        if not value >= self.least and not math.isinf(self.least):  # written so that nan violates it
            return f"at least {self.least:g}"
        if not value > self.above and not math.isinf(self.above):
            return f"above {self.above:g}"
        if not value <= self.most and not math.isinf(self.most):
            return f"at most {self.most:.15g}"
        if not value < self.below and not math.isinf(self.below):
            return f"below {self.below:g}"
        return "" if math.isfinite(value) else "a finite number"


ANY, NOT_NEGATIVE, POSITIVE = Bounds(), Bounds(least=0), Bounds(above=0)
COUNT = Bounds(least=1, most=10**12)
SHARE = Bounds(least=0, most=1)
SIDE = Bounds(least=1, most=10_000)  # pixels
WIDTH = Bounds(least=1, most=10**6)  # of a layer
SEED = Bounds(least=0, most=2**32 - 1)  # what NumPy takes

BOUNDS = {
    "max_images": COUNT,
    "image_size": SIDE,
    "val_images": Bounds(least=0, most=10**12),
    "epoch_images": COUNT,
    "shuffle": Bounds(least=1, most=10**8),
    "projector": WIDTH,
    "predictor": WIDTH,
    "local": WIDTH,
    "prototypes": WIDTH,
    "frozen_prototypes": NOT_NEGATIVE,
    "ema_momentum": SHARE,
    "options": ANY,  # each method knows its own
    "nu": NOT_NEGATIVE,
    "upsilon": NOT_NEGATIVE,
    "rho": Bounds(above=2),  # else the Student-t has no covariance
    "effective_dim": POSITIVE,
    "prior_effective_dim": POSITIVE,
    "ramp_epochs": NOT_NEGATIVE,
    "perplexity": Bounds(above=1, most=10**6),
    "memory_size": Bounds(least=2, most=10**7),
    "prior_power": NOT_NEGATIVE,
    "prior_perplexity": Bounds(above=1, most=10**6),
    "prior_width": WIDTH,
    "prior_size": SIDE,
    "epochs": Bounds(least=1, most=10**6),
    "batch_size": Bounds(least=1, most=10**7),
    "lr": NOT_NEGATIVE,
    "bias_lr": NOT_NEGATIVE,
    "lars_eta": POSITIVE,
    "weight_decay": NOT_NEGATIVE,
    "warmup_epochs": NOT_NEGATIVE,
    "probe_every": COUNT,
    "log_every": COUNT,
    "save_minutes": NOT_NEGATIVE,
    "save_every": COUNT,
    "keep": Bounds(least=0, most=10**6),
    "seed": SEED,
    "devices": Bounds(least=1, most=1024),
    "nodes": Bounds(least=1, most=10**5),
    "accumulate": Bounds(least=1, most=10**6),
    "workers": Bounds(least=0, most=1024),
    # glf adapt
    "tail": Bounds(least=1, most=1000),
    "views": Bounds(least=0, most=1000),
    "head_share": Bounds(least=0, below=1),
    "head_lr": NOT_NEGATIVE,
    "l2sp": NOT_NEGATIVE,
    # glf evaluate
    "knn_k": Bounds(least=1, most=10**6),
    "knn_temperature": POSITIVE,
    "probe_epochs": Bounds(least=1, most=10**6),
    "probe_lrs": POSITIVE,
    "logistic_c": POSITIVE,
    "fractions": Bounds(above=0, most=1),
    "finetune_epochs": Bounds(least=1, most=10**6),
    "finetune_lr": POSITIVE,
    "finetune_batch": Bounds(least=1, most=10**6),
    "detect_size": SIDE,
    "detect_shrink": Bounds(above=0, most=1),
    "detect_epochs": Bounds(least=1, most=10**6),
    "detect_batch": Bounds(least=1, most=10**6),
    "detect_lr": POSITIVE,
    "detect_regions": Bounds(least=2, most=10**6),
    "detect_pool": Bounds(least=1, most=1000),
    "detect_freeze": Bounds(least=0, most=4),
    "detect_seed": SEED,
    # other commands
    "seeds": Bounds(least=1, most=10**6),
    "jobs": Bounds(least=1, most=10**4),
    "k": COUNT,
    "count": Bounds(least=0, most=10**12),
    "similarity": Bounds(above=0, most=1),
    "per_shard": Bounds(least=1, most=10**9),
}
# Options of the methods (--options), by name; any other must not be negative.
METHOD_BOUNDS = {
    **dict.fromkeys(
        ("temperature", "sharp", "sharp_start", "sharpness", "distortion", "epsilon"), POSITIVE
    ),  # divisors
    **dict.fromkeys(("size", "clusters", "first", "second", "slices"), Bounds(least=1, most=10**6)),
    **dict.fromkeys(("queue", "warmup", "order", "rounds"), Bounds(least=0, most=10**8)),
    **dict.fromkeys(("same", "old", "share", "sigreg", "smoothing", "within"), SHARE),
}
MAX_WORKERS = 16  # chosen automatically: more decoding processes or threads only wait for the disk and fill the memory
NOT_EMPTY = {"probe_lrs", "logistic_c", "detect_lr", "fractions"}


def check_options(config: Any, **narrower: Bounds) -> None:
    """Check types and bounds of all fields; ``narrower`` bounds apply to this config only.

    >>> from glf.config.training import PretrainConfig
    >>> PretrainConfig(lr=float("inf"))
    Traceback (most recent call last):
    ValueError: lr must be a finite number, got inf
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        if wanted := misfit(value, hints[name]):
            raise ValueError(f"{name} must be {wanted}, got {value!r}")
        if name == "options":
            check_method_options(value)
        numbers = list(_numbers(value))
        if name in NOT_EMPTY and not numbers:
            raise ValueError(f"{name} needs at least one value, got {value!r}")
        for number in numbers:
            if wanted := narrower.get(name, BOUNDS[name]).violated(number):
                raise ValueError(f"{name} must be {wanted}, got {value}")


def check_method_options(options: Mapping[str, float], of: str = "--options") -> None:
    """Check the bounds of a method's options; their names are checked by the method, which takes torch to import."""
    for name, value in options.items():
        if wanted := METHOD_BOUNDS.get(name.rpartition(".")[2], NOT_NEGATIVE).violated(value):
            raise ValueError(f"{name} of {of} must be {wanted}, got {value:g}")


def _numbers(value: Any) -> Iterable[float]:
    """The numbers in an option: itself, the entries of a list, the values of a table."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, SupportsFloat) and not isinstance(one, bool):
            yield float(one)
