"""The commands as functions: the same names and defaults, as keyword arguments. ``glf.pretrain(data="photos/")``.

Each builds the configuration that its command builds, so an unknown name is an error with the nearest known one.
Type checkers know the settings too: a function's parameters are its configuration's.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from glf.config.base import from_dict, groups, to_dict
from glf.config.evaluation import CompareConfig, DoctorConfig, EvaluateConfig, ReportConfig, VerifyConfig
from glf.config.inference import EmbedConfig, ExportConfig, OutliersConfig, SearchConfig, ShardConfig
from glf.config.training import PretrainConfig

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


def command(kind: Callable[P, C], does: str | Callable[[C], R], returns: type[R]) -> Callable[P, R]:
    """What ``does`` (a function, or "module:function") with a configuration, as a function of its settings."""
    signature = inspect.signature(kind)
    required = [name for name, one in signature.parameters.items() if one.default is one.empty]

    def call(*args: P.args, **settings: P.kwargs) -> R:
        if len(args) > len(required):
            name = next(name for name in signature.parameters if name not in required)
            raise TypeError(f"settings are given by name, like {name}={args[len(required)]!r}")
        config = configured(kind, {**dict(zip(required, args, strict=False)), **settings})
        if isinstance(does, str):
            module, _, name = does.partition(":")  # torch is imported here, and not before
            found: R = getattr(import_module(module), name)(config)
            return found
        return does(config)

    call.__name__ = call.__qualname__ = does.partition(":")[2] if isinstance(does, str) else does.__name__.strip("_")
    call.__doc__ = (
        f"{kind.__doc__} Every setting of `glf {call.__name__} --help`, by name; what it needs may come first."
    )
    call.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
    return call


def configured(kind: Callable[..., C], settings: Mapping[str, Any]) -> C:
    """What the command line would make of these: members of a group may stand among the others, a recipe comes first.

    >>> configured(PretrainConfig, {"nu": 0.1, "recipe": "tiny", "epochs": 3}).adc.nu
    0.1
    """
    assert isinstance(kind, type)
    values = dict(settings)
    for group, members in groups(kind).items():
        own = {field.name: values.pop(field.name) for field in fields(members) if field.name in values}
        if own:
            values[group] = {**to_dict(values.get(group, members())), **own}
    if kind is PretrainConfig and values.get("recipe") is not None:
        from glf.recipes import completed, with_recipe

        start = PretrainConfig(method=values.get("method", PretrainConfig.method))
        values = {**to_dict(with_recipe(start, values["recipe"])), **values}
        return completed(from_dict(kind, values))  # type: ignore[return-value]
    return from_dict(kind, values)


def _doctor(config: DoctorConfig) -> list[Any]:
    from glf.health.examine import diagnose

    return diagnose(config.run)[0]


def _report(config: ReportConfig) -> Path:
    from glf.reporting.page import write_report

    write_report(config.runs, config.out, config.figures)
    return config.out


pretrain = command(PretrainConfig, "glf.train.run:pretrain", dict)
evaluate = command(EvaluateConfig, "glf.evaluation.suite:evaluate", dict)
compare = command(CompareConfig, "glf.comparison.conduct:compare", dict)
verify = command(VerifyConfig, "glf.comparison.verification:verify", bool)
report = command(ReportConfig, _report, Path)
embed = command(EmbedConfig, "glf.inference.embedding:embed", object)
search = command(SearchConfig, "glf.inference.image_search:search", list)
outliers = command(OutliersConfig, "glf.inference.outlier_search:outliers", list)
export = command(ExportConfig, "glf.exporting.write:export", object)
shard = command(ShardConfig, "glf.sharding:shard", object)
doctor = command(DoctorConfig, _doctor, list)
