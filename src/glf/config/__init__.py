"""Settings as frozen keyword-only dataclasses. Unknown keys are errors; every run saves its own.

No torch here: the command line reads these files to print its help.
"""

from glf.config.base import from_dict, groups, nearest, to_dict
from glf.config.evaluation import (
    CompareConfig,
    DoctorConfig,
    EvaluateConfig,
    MethodsConfig,
    ReportConfig,
    Split,
    Suite,
    VerifyConfig,
)
from glf.config.inference import EmbedConfig, ExportConfig, Format, OutliersConfig, SearchConfig, ShardConfig
from glf.config.training import (
    AdcOptions,
    Colour,
    CovarianceKind,
    Labels,
    Optimizer,
    Precision,
    PretrainConfig,
    Reading,
    ResolvedPretrainConfig,
    Stem,
    Store,
    TScale,
    resolved,
)
from glf.config.transfer import DetectNorm, DetectOptions, DetectTask, FinetuneOptions

__all__ = [
    "AdcOptions",
    "Colour",
    "CompareConfig",
    "CovarianceKind",
    "DetectNorm",
    "DetectOptions",
    "DetectTask",
    "DoctorConfig",
    "EmbedConfig",
    "EvaluateConfig",
    "ExportConfig",
    "FinetuneOptions",
    "Format",
    "Labels",
    "MethodsConfig",
    "Optimizer",
    "OutliersConfig",
    "Precision",
    "PretrainConfig",
    "Reading",
    "ReportConfig",
    "ResolvedPretrainConfig",
    "SearchConfig",
    "ShardConfig",
    "Split",
    "Stem",
    "Store",
    "Suite",
    "TScale",
    "VerifyConfig",
    "from_dict",
    "groups",
    "nearest",
    "resolved",
    "to_dict",
]
