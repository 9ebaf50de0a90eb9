"""Settings as frozen keyword-only dataclasses. Unknown keys are errors; every run saves its own.

No torch here: the command line reads these files to print its help.
"""

from glf.config.judging import (
    CompareConfig,
    DoctorConfig,
    EvaluateConfig,
    MethodsConfig,
    ReportConfig,
    Split,
    Suite,
    VerifyConfig,
)
from glf.config.plain import from_dict, groups, nearest, to_dict
from glf.config.sharding import ShardConfig
from glf.config.training import (
    AdcOptions,
    Colour,
    CovarianceKind,
    Labels,
    Optimizer,
    Precision,
    PretrainConfig,
    Reading,
    Settled,
    Stem,
    Store,
    TScale,
    settled,
)
from glf.config.transfer import DetectNorm, DetectOptions, DetectTask, FinetuneOptions
from glf.config.using import EmbedConfig, ExportConfig, Format, OutliersConfig, SearchConfig

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
    "SearchConfig",
    "Settled",
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
    "settled",
    "to_dict",
]
