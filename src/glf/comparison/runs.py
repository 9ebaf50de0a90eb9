"""Runs of a comparison: whether they are finished, and the keys under which their results are stored."""

import hashlib
import json
from collections.abc import Set
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from glf import plugins
from glf.config.base import from_dict
from glf.config.evaluation import EvaluateConfig
from glf.config.training import AdaptConfig, ResolvedPretrainConfig
from glf.result import read_result
from glf.rundir import RESUMABLE_FIELDS, check_free, read_config
from glf.runfiles import CONFIG, RESULT

C = TypeVar("C", bound=Any)
# Fields that do not change what is learnt, or how it is measured.
_NOT_IN_TRAINING_KEY = RESUMABLE_FIELDS | {"recipe"}
# Of an adaptation, what the encoder determines: not known before it is loaded
_OF_THE_ENCODER = {"backbone", "stem", "prior", "prior_weights", "prior_size"}
_NOT_IN_EVALUATION_KEY = {"run", "references", "artifacts", "log", "device", "batch_size", "root", "download"}
# Fields of the training config that the results of raw pixels and of the network before training depend on.
_REFERENCE_FIELDS = {
    "data", "max_images", "val_images", "labels", "seed", "backbone", "image_size", "stem", "whiten_stem", "encoder",
    "weights",
}  # fmt: skip


def evaluated_result(run: Path, config: EvaluateConfig) -> dict[str, Any] | None:
    """Return the content of result.json if the run has been evaluated with this config, else None."""
    content = read_result(run) if (run / RESULT).exists() else {}
    if "evaluation" not in content:
        return None
    return None if _differing(evaluated_config(run, content), config, _NOT_IN_EVALUATION_KEY) else content


def evaluated_config(run: Path, content: dict[str, Any]) -> EvaluateConfig:
    """The options of the evaluation in a run's result.json."""
    try:
        return from_dict(EvaluateConfig, content["evaluation"]["config"])
    except ValueError as error:
        raise ValueError(f"{run / RESULT} is damaged, or was edited: evaluation.config: {error}") from error


def check_run(run: Path, config: ResolvedPretrainConfig) -> None:
    """Raise a ValueError if the directory holds a run that was trained with another config, or something else."""
    check_free(run)
    if not (run / CONFIG).exists():
        return
    saved = read_config(run)
    if isinstance(config, AdaptConfig):
        config = _filled(config, saved)
    for name in _differing(saved, config, _ignored(config)):
        raise ValueError(
            f"{run} was trained with {name} {getattr(saved, name)!r}, but the study says {getattr(config, name)!r}:"
            " choose another --out"
        )


def _filled(config: C, saved: Any) -> C:
    """The config with the saved values of unset options: an adaptation chooses them for its encoder and its images."""
    found: dict[str, Any] = {}
    for field in fields(config):
        value, there = getattr(config, field.name), getattr(saved, field.name, None)
        found[field.name] = there if value is None else _filled(value, there) if is_dataclass(value) else value
    return replace(config, **found)


def _ignored(config: ResolvedPretrainConfig) -> Set[str]:
    return _NOT_IN_TRAINING_KEY | (_OF_THE_ENCODER if isinstance(config, AdaptConfig) else frozenset())


def _differing(one: Any, other: Any, ignored: Set[str]) -> list[str]:
    names = [field.name for field in fields(one) if field.name not in ignored]
    return [name for name in names if _comparable(name, getattr(one, name)) != _comparable(name, getattr(other, name))]


def _comparable(name: str, value: Any) -> Any:
    """The value of a field, for comparisons: the same file elsewhere is the same plug-in."""
    return sorted(plugins.digest(one) for one in value) if name == "plugin" else value


def run_key(training: ResolvedPretrainConfig, evaluation: EvaluateConfig) -> str:
    """Hash of everything that the results of a run depend on."""
    return _digest(_key_fields(training, _ignored(training)), _key_fields(evaluation, _NOT_IN_EVALUATION_KEY))


def reference_key(training: ResolvedPretrainConfig, evaluation: EvaluateConfig) -> str:
    """Hash of everything that the results of raw pixels and of the untrained network depend on."""
    own = _key_fields(training, _ignored(training))
    seen = {name: value for name, value in own.items() if name in _REFERENCE_FIELDS}
    return _digest(seen, _key_fields(evaluation, _NOT_IN_EVALUATION_KEY))


def _key_fields(config: Any, ignored: Set[str] = frozenset()) -> dict[str, Any]:
    """Config fields used for the run key. Unset options are left out: a new one does not invalidate stored runs."""
    found: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        value = _key_fields(value) if is_dataclass(value) else _comparable(field.name, value)
        new = field.name == "plugin"  # newer than the stored runs, whose keys contain other empty lists
        unset = value is None or value == {} or (new and not value) or (value is False and field.default is False)
        if field.name not in ignored and not unset:
            found[field.name] = value
    return found


def _digest(*values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()
