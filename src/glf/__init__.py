"""Self-supervised image representations: every method is an aligning part plus a constraining part."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glf.align.distance import MSE, Cosine, Diagonal
    from glf.align.predict import PredictTeacher, PredictView
    from glf.api import compare, doctor, embed, evaluate, export, outliers, pretrain, report, search, shard, verify
    from glf.constrain.adc.equations import ADC, DCM, LPM
    from glf.constrain.contrast import LogPartition
    from glf.constrain.moments import Covariance, Redundancy, Standardise, Variance
    from glf.methods import METHODS, parse
    from glf.objective import Method, Objective
    from glf.terms import Sum, Term
    from glf.types import Embeddings, Loss, Views

# Nothing is imported until it is used: torch takes seconds, and `glf --help` should not.
_HOME = {
    "ADC": "glf.constrain.adc.equations",
    "Cosine": "glf.align.distance",
    "Covariance": "glf.constrain.moments",
    "DCM": "glf.constrain.adc.equations",
    "Diagonal": "glf.align.distance",
    "Embeddings": "glf.types",
    "LPM": "glf.constrain.adc.equations",
    "LogPartition": "glf.constrain.contrast",
    "Loss": "glf.types",
    "METHODS": "glf.methods",
    "MSE": "glf.align.distance",
    "Method": "glf.objective",
    "Objective": "glf.objective",
    "PredictTeacher": "glf.align.predict",
    "PredictView": "glf.align.predict",
    "Redundancy": "glf.constrain.moments",
    "Standardise": "glf.constrain.moments",
    "Sum": "glf.terms",
    "Term": "glf.terms",
    "Variance": "glf.constrain.moments",
    "Views": "glf.types",
    "parse": "glf.methods",
}
# The commands as functions; those that are modules too can be called.
_COMMANDS = (
    "pretrain", "evaluate", "compare", "verify", "report", "embed", "search", "outliers", "export", "shard", "doctor",
)  # fmt: skip
_HOME |= dict.fromkeys(_COMMANDS, "glf.api")

__version__ = "0.1.0"
__all__ = [
    "ADC",
    "DCM",
    "LPM",
    "METHODS",
    "MSE",
    "Cosine",
    "Covariance",
    "Diagonal",
    "Embeddings",
    "LogPartition",
    "Loss",
    "Method",
    "Objective",
    "PredictTeacher",
    "PredictView",
    "Redundancy",
    "Standardise",
    "Sum",
    "Term",
    "Variance",
    "Views",
    "compare",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "outliers",
    "parse",
    "pretrain",
    "report",
    "search",
    "shard",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'glf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Called(ModuleType):
    """A module with the name of a command: ``glf.evaluation`` is where judging lives, ``glf.evaluation(...)`` judges."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return getattr(import_module("glf.api"), self.__name__.rpartition(".")[2])(*args, **settings)


class _Package(ModuleType):
    """An import binds a module to its package's name for it, where a command's function would otherwise be found."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _COMMANDS and isinstance(value, ModuleType):
            value.__class__ = _Called
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
