"""Every command of glf, described once: the parser, the help, the Python functions and the docs follow from this table.

A command is a config, a function ``NAME(config, console)`` and examples. ``glf NAME --option value`` parses the config
from the command line; ``glf.NAME(option=value)`` builds the same config from keyword arguments.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rich.console import Console

from glf.config.base import from_dict, groups, to_dict
from glf.config.bounds import MAX_WORKERS
from glf.config.evaluation import (
    CompareConfig,
    DoctorConfig,
    EvaluateConfig,
    MethodsConfig,
    ReportConfig,
    VerifyConfig,
)
from glf.config.inference import EmbedConfig, ExportConfig, OutliersConfig, PushConfig, SearchConfig, ShardConfig
from glf.config.training import AdaptConfig, PretrainConfig
from glf.files import require_open_files

OWN_FILES = 64  # 12 were counted in a run, and there may be 16 decoding threads
FILES_PER_WORKER = 24  # 2 pipes and a process for each, and up to 4 batches of 4 tensors that wait in shared memory
P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command. ``exit_code`` maps the function's result to the exit code of ``glf NAME``."""

    name: str
    config: type[Any]
    function: str  # "module:function": imported when the command runs, because torch takes seconds
    examples: tuple[str, ...]
    exit_code: Callable[[Any], int]

    @property
    def summary(self) -> str:
        return (self.config.__doc__ or "").strip()

    @property
    def help(self) -> str:
        """The summary and the examples."""
        return f"{self.summary}\n\nExamples:" + "".join(f"\n  {line}" for line in self.examples)

    def run(self, config: Any, console: Console | None = None) -> Any:
        """Import the function and call it."""
        require_open_files(open_files(config))
        module, _, name = self.function.partition(":")
        return getattr(import_module(module), name)(config, console)


COMMANDS: dict[str, Command] = {}


def open_files(config: Any) -> int:
    """How many files a command may have open at once: its own, and what it shares with its workers."""
    given = getattr(config, "workers", 0)
    return OWN_FILES + FILES_PER_WORKER * (min(MAX_WORKERS, os.cpu_count() or 1) if given is None else given)


def command(
    config: Callable[P, C],
    function: str,
    returns: type[R],
    *examples: str,
    exit_code: Callable[[Any], int] = lambda result: 0,
) -> Callable[P, R]:
    """Register a command under the name of its function, and return it as a Python function of its options."""
    assert isinstance(config, type)
    name = function.partition(":")[2]
    entry = COMMANDS[name] = Command(
        name=name, config=config, function=function, examples=examples, exit_code=exit_code
    )
    signature = inspect.signature(config)
    required = [option for option, one in signature.parameters.items() if one.default is one.empty]

    def call(*args: P.args, **options: P.kwargs) -> R:
        if len(args) > len(required):
            option = next((option for option in signature.parameters if option not in required), "option")
            raise TypeError(f"options are given by name, like {option}={args[len(required)]!r}")
        if twice := options.keys() & set(required[: len(args)]):
            raise TypeError(f"{name}() got {min(twice)!r} twice: by position and by name")
        result: R = entry.run(configured(config, {**dict(zip(required, args, strict=False)), **options}))
        return result

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{entry.summary} Options as in `glf {name} --help`, by name; required ones may come first."
    call.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
    return call


def configured(config: Callable[..., C], options: Mapping[str, Any]) -> C:
    """Build a config from keyword arguments; members of a group (``nu`` of ``adc``) may stand among the others.

    >>> configured(PretrainConfig, {"nu": 0.1, "epochs": 3}).adc.nu
    0.1
    """
    assert isinstance(config, type)
    values = dict(options)
    for group, members in groups(config).items():
        own = {field.name: values.pop(field.name) for field in fields(members) if field.name in values}
        if own:
            values[group] = {**to_dict(values.get(group, members)), **own}
    return from_dict(config, values)


pretrain = command(
    PretrainConfig,
    "glf.train.run:pretrain",
    dict,
    "glf pretrain --data photos/ --method simclr+adc --backbone resnet18 --out runs/a",
    "glf pretrain --data cifar10 --method byol --recipe cifar --download",
    "glf pretrain --data photos/ --weights lightly.ckpt --backbone resnet50 --out runs/b",
    "glf pretrain --resume --out runs/a",
)
adapt = command(
    AdaptConfig,
    "glf.adaptation.run:adapt",
    dict,
    "glf adapt timm:tf_efficientnet_lite0 --data photos/ --out runs/a",
    "glf adapt torchvision:resnet18 --data photos/ --download",
    "glf adapt run:runs/b --data photos/ --train norms",
    "glf adapt weights.pth --backbone resnet50 --data photos/",
    "glf adapt --resume --out runs/a",
)
evaluate = command(
    EvaluateConfig,
    "glf.evaluation.suite:evaluate",
    dict,
    "glf evaluate runs/a",
    "glf evaluate runs/a --suite knn linear geometry theory --compare-with runs/b",
    "glf evaluate timm:resnet18 --data photos/ --download",
    "glf evaluate timm:resnet50 --weights solo.ckpt --data cifar10",
)
compare = command(
    CompareConfig,
    "glf.comparison.conduct:compare",
    dict,
    "glf compare --methods simclr byol --constrain none adc --seeds 3 --data cifar10 --out runs/compare",
    "glf compare --study benchmarks/studies/headline.toml --scale tiny",
)
verify = command(
    VerifyConfig,
    "glf.comparison.verification:verify",
    bool,
    "glf verify runs/a",
    "glf verify runs/compare/cifar10/simclr/adc/0/result.json",
    exit_code=lambda same: 0 if same else 1,
)
report = command(
    ReportConfig,
    "glf.reporting.page:report",
    Path,
    "glf report runs/a",
    "glf report runs/ --out report.html",
)
shard = command(
    ShardConfig,
    "glf.sharding:shard",
    object,
    "glf shard photos/ --out shards",
    "glf shard photos/ --out shards --prior timm:tf_efficientnet_lite0 --per-shard 2000",
)
embed = command(
    EmbedConfig,
    "glf.inference.embedding:embed",
    object,
    "glf embed runs/a photos/ --out embeddings.parquet",
    "glf embed runs/a photos/ --out embeddings.csv --map",
    "glf embed timm:resnet18 photos/ --out embeddings.npy --download",
)
search = command(
    SearchConfig,
    "glf.inference.image_search:search",
    list,
    "glf search runs/a query.jpg photos/",
    "glf search runs/a one.jpg two.png photos/ --k 5 --out found.csv",
)
outliers = command(
    OutliersConfig,
    "glf.inference.outlier_search:outliers",
    list,
    "glf outliers runs/a photos/",
    "glf outliers timm:resnet18 photos/ --similarity 0.98 --count 50 --out odd.csv",
    "glf outliers pixels photos/",
)
export = command(
    ExportConfig,
    "glf.exporting.write:export",
    object,
    "glf export runs/a --format timm",
    "glf export runs/a --format onnx --out backbone.onnx",
    "glf export runs/a --format torchvision --out backbone.pth",
)
push = command(
    PushConfig,
    "glf.exporting.hub:push",
    object,
    "glf push runs/a user/name --dry-run",
    "glf push runs/a user/name --license mit --public",
)
doctor = command(
    DoctorConfig,
    "glf.health.examine:doctor",
    list,
    "glf doctor runs/a",
    exit_code=lambda findings: 1 if findings else 0,
)
command(  # the Python equivalent is glf.METHODS
    MethodsConfig,
    "glf.listing:methods",
    dict,
    "glf methods",
    "glf methods swav",
)
