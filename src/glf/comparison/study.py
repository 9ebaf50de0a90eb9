"""Studies: which methods, variants, data sets and seeds are compared, from flags or from a TOML file."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from glf import plugins
from glf.config.base import data_name, from_dict, groups, nearest, to_dict
from glf.config.evaluation import CompareConfig, EvaluateConfig
from glf.config.training import AdaptConfig, PretrainConfig, ResolvedPretrainConfig, config_type, with_defaults
from glf.data.augment import policies
from glf.methods import method_of, with_plugins
from glf.recipes import apply_recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = dict[str, Any]  # fields of a config by name, those of nested configs among the others
_CELL_FIELDS = {"method", "data", "seed", "out", "resume", "overwrite", "dry_run", "auto"}  # set by the comparison
_RUN_FIELDS = {"run", "references", "artifacts"}  # of the evaluation, set by the comparison
_KEYS = {"title", "methods", "data", "seeds", "base", "variants", "settings", "evaluation", "versus", "finding", "cost"}
_REQUIRED = {"title", "methods", "data", "seeds", "base", "variants"}


class Cell(NamedTuple):
    """One run of a study."""

    data: str
    method: str
    variant: str
    seed: int

    @property
    def path(self) -> Path:
        """The run directory, relative to the directory of the comparison."""
        return Path(data_name(self.data), self.method.replace("+", "-"), self.variant, str(self.seed))


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared, and how it is trained and evaluated. Mistakes are errors when it is created."""

    title: str
    methods: tuple[str, ...]
    data: tuple[str, ...]
    seeds: int
    base: str
    """The variant that the others are compared with."""
    variants: dict[str, Settings]
    """Fields of PretrainConfig by variant; ``constrain`` adds a constraint to the method, and
    ``method`` names another one. Those of AdaptConfig if there
    is an ``encoder``: the runs are then adaptations."""
    settings: Settings = field(default_factory=dict)
    """Fields of PretrainConfig for all variants."""
    evaluation: Settings = field(default_factory=dict)
    """Fields of EvaluateConfig."""
    versus: dict[str, str] = field(default_factory=dict)
    """A second variant to compare a variant with, besides the base."""
    finding: str = ""
    cost: str = ""
    parsed: dict[tuple[str, str], PretrainConfig] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The config of each method and variant, without data and seed."""

    def __post_init__(self) -> None:
        variants = ", ".join(self.variants)
        if self.base not in self.variants:
            raise ValueError(f"base = {self.base!r} is not one of the variants: {variants}")
        for name in {*self.versus, *self.versus.values()} - self.variants.keys():
            raise ValueError(f"versus names {name!r}, which is not one of the variants: {variants}")
        if self.seeds < 1 or not self.methods or not self.data:
            raise ValueError("a study needs at least one method, one data set and one seed")
        for name in self.variants:
            if Path(name).name != name or name in (".", ".."):
                raise ValueError(f"variant {name!r} cannot be the name of a folder: rename it")
        for name, settings in {"settings": self.settings, **self.variants}.items():
            refused = _CELL_FIELDS - {"method"} if name in self.variants else _CELL_FIELDS
            if not isinstance(settings, Mapping) or refused & settings.keys():
                raise ValueError(f"{name} must be a table without {', '.join(sorted(refused))}: {settings}")
        if _RUN_FIELDS & self.evaluation.keys():
            raise ValueError(f"evaluation cannot set {', '.join(sorted(_RUN_FIELDS))}: the comparison sets them")
        paths: dict[Path, Cell] = {}
        for cell in self.cells():
            other = paths.setdefault(cell.path, cell)
            if other != cell:
                raise ValueError(f"{cell.data} and {other.data} would share the folder {cell.path}: rename one")
        split = self.evaluate_config(Path()).split
        for name, variant in product(self.methods, self.variants):
            config = self.parsed[name, variant] = self._config(name, variant)
            method = method_of(config)
            method.build(**config.options)
            policies.policy(config.augment or method.augment)
            if split == "val" and config.val_images == 0:
                raise ValueError('split = "val" needs held-out images: set val_images above 0')

    def cells(self) -> Iterator[Cell]:
        """Iterate over all runs, seed by seed: a study that is stopped early has complete pairs."""
        for seed, data, method, variant in product(range(self.seeds), self.data, self.methods, self.variants):
            yield Cell(data, method, variant, seed)

    def config(self, cell: Cell) -> ResolvedPretrainConfig:
        """Return the training config of a run."""
        return with_defaults(replace(self.parsed[cell.method, cell.variant], data=cell.data, seed=cell.seed))

    def evaluate_config(self, run: Path, references: bool = False, artifacts: bool = False) -> EvaluateConfig:
        """Return the evaluation config of a run."""
        given = {"run": run, "references": references, "artifacts": artifacts}
        return from_dict(EvaluateConfig, {**self.evaluation, **given})

    def configs(self, cell: Cell) -> tuple[ResolvedPretrainConfig, EvaluateConfig]:
        """Return both, for the keys of a run."""
        return self.config(cell), self.evaluate_config(cell.path)

    def _config(self, method: str, variant: str) -> PretrainConfig:
        """Merge the recipe, the settings of the study and those of the variant, in this order."""
        given = {**self.settings, **self.variants[variant]}
        constrain, method = given.pop("constrain", "none"), given.pop("method", method)
        recipe = given.pop("recipe", None)
        kind = config_type(given)
        values = _flat(kind())
        for name in given:
            if name not in values:
                raise ValueError(f"unknown configuration key {name!r}{nearest(name, values)}")
        values |= {**given, "method": method if constrain == "none" else f"{method}+{constrain}"}
        # Parsed as flags, so that a word where a number should be is refused with the command line's message.
        parsed = tyro.cli(kind, args=_flags(kind, values), config=(tyro.conf.OmitArgPrefixes,))
        pinned = replace(parsed, recipe=recipe, auto=False, plugin=plugins.pin(parsed.plugin))
        return apply_recipe(with_plugins(pinned))


def flags(config: PretrainConfig | EvaluateConfig) -> list[str]:
    """Render a config as command-line flags; fields with default values are left out."""
    return _flags(type(config), _flat(config))


def _flat(config: PretrainConfig | EvaluateConfig) -> Settings:
    """Fields by name; those of nested configs among the others, as on the command line."""
    values = to_dict(config)
    for group in groups(type(config)):
        values |= values.pop(group)
    return values


def _flags(kind: type[PretrainConfig] | type[EvaluateConfig], values: Settings) -> list[str]:
    defaults = {one.name: one.default for one in fields(kind)}
    for nested in groups(kind).values():
        defaults |= vars(nested)
    found: list[str] = []
    for name, value in values.items():
        default, flag = defaults[name], f"--{name.replace('_', '-')}"
        always = name in ("method", "data", "seed") and value is not None
        is_default = value == (list(default) if isinstance(default, tuple) else default)
        if name in ("recipe", "run") or (is_default and not always) or value == {}:
            continue
        if name == "auto" and issubclass(kind, AdaptConfig):  # no option of glf adapt
            continue
        if name == "encoder":  # the one positional argument
            found.insert(0, str(value))
            continue
        if isinstance(default, bool) and isinstance(value, bool):
            found.append(flag if value else f"--no-{name.replace('_', '-')}")
        elif isinstance(value, dict):
            found += [flag, *(str(part) for item in value.items() for part in item)]
        else:
            texts = [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
            repeated = name == "plugin"
            found += [word for text in texts for word in (flag, text)] if repeated else [flag, *texts]
    return found


def from_flags(config: CompareConfig) -> Study:
    """Create the study of a command line: methods x constraints, or a study file with overrides."""
    settings, evaluation = _typed(config.settings), _lists(_typed(config.evaluation))
    if config.plugin:
        settings["plugin"] = list(config.plugin)
    if config.study is not None:
        if config.methods or config.constrain:
            raise ValueError("--study defines the methods and variants: not with --methods or --constrain")
        study = from_file(config.study, config.scale)
        return replace(
            study,
            data=config.data or study.data,
            seeds=study.seeds if config.seeds is None else config.seeds,
            settings={**study.settings, **settings},
            evaluation={**study.evaluation, **evaluation},
        )
    methods = _split(config.methods) or ("simclr", "byol", "barlow_twins", "vicreg")
    constrain = _split(config.constrain) or ("none", "dcm", "lpm", "adc")
    return Study(
        title=f"{', '.join(methods)} with {', '.join(constrain)}",
        methods=methods,
        data=config.data or ("fashion-mini",),
        seeds=3 if config.seeds is None else config.seeds,
        base=constrain[0],
        variants={name: {"constrain": name} for name in constrain},
        settings=settings,
        evaluation=evaluation,
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Read a study file without checking its content."""
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    return content


def from_file(path: Path, scale: str) -> Study:
    """Read a study file; values of the chosen scale override the others."""
    content = read_toml(path)
    scales = content.pop("scales", {})
    if scale not in scales:
        raise ValueError(f"{path} has no scale {scale!r}{nearest(scale, scales)} (it has: {', '.join(scales)})")
    for values in (content, *scales.values()):
        if unknown := values.keys() - _KEYS:
            raise ValueError(f"{path}: unknown key {min(unknown)!r}{nearest(min(unknown), _KEYS)}")
    for name, value in scales[scale].items():
        content[name] = {**content.get(name, {}), **value} if isinstance(value, Mapping) else value
    if missing := _REQUIRED - content.keys():
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
    if not isinstance(content["seeds"], int):
        raise ValueError(f"{path}: seeds must be a number of runs, got {content['seeds']!r}")
    return Study(**content | {name: tuple(content[name]) for name in ("methods", "data")})


def _split(names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Split at commas: ``--methods simclr,byol`` is the same as ``--methods simclr byol``."""
    return tuple(part for name in names or () for part in name.split(",") if part)


def _typed(settings: Mapping[str, str]) -> Settings:
    """Values of flags with the types they would have in a study file: ``epochs 6`` is a number."""
    return {name: _value(text) for name, text in settings.items()}


def _lists(evaluation: Settings) -> Settings:
    """Options that take several values may be given one, or some with commas: ``suite knn,linear``."""
    found = dict(evaluation)
    for name in {one.name for one in fields(EvaluateConfig) if isinstance(one.default, tuple)} & found.keys():
        value = found[name]
        if isinstance(value, str):
            found[name] = [_value(part) for part in value.split(",")]
        elif not isinstance(value, list):
            found[name] = [value]
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text.lower() if text in ('True', 'False') else text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
