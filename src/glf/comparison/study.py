"""What is compared: from flags, or from a file that says it all."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from glf.config.base import from_dict, groups, nearest, to_dict
from glf.config.evaluation import CompareConfig, EvaluateConfig
from glf.config.training import PretrainConfig, ResolvedPretrainConfig, resolved
from glf.data.augment import policies
from glf.methods import parse
from glf.recipes import completed, with_recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = dict[str, Any]  # of PretrainConfig, by name; those of ADC stand among them
_OWN = {"method", "data", "seed", "out", "resume", "overwrite", "dry_run", "auto"}  # a cell says these, not a setting
_OWN_EVALUATION = {"run", "references", "artifacts"}
_KEYS = {"title", "methods", "data", "seeds", "base", "variants", "settings", "evaluation", "versus", "finding", "cost"}
_NEEDED = {"title", "methods", "data", "seeds", "base", "variants"}


class Cell(NamedTuple):
    """One run: a method in one of its variants, on one set of images, from one seed."""

    data: str
    method: str
    variant: str
    seed: int

    @property
    def place(self) -> Path:
        """Where it lies below the study's directory."""
        return Path(Path(self.data).stem or "data", self.method.replace("+", "-"), self.variant, str(self.seed))


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that is compared, and how. ``base`` is the variant that the others are compared with."""

    title: str
    methods: tuple[str, ...]
    data: tuple[str, ...]
    seeds: int
    base: str
    variants: dict[str, Settings]
    settings: Settings = field(default_factory=dict)
    evaluation: Settings = field(default_factory=dict)  # of EvaluateConfig
    versus: dict[str, str] = field(
        default_factory=dict
    )  # variants, and the one beside the base that each is held against
    finding: str = ""
    cost: str = ""
    # How each cell is trained: made once and in one thread, because tyro is slow and not safe in several.
    configs: dict[Cell, ResolvedPretrainConfig] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Whatever is wrong is said before hours have passed."""
        if self.base not in self.variants:
            raise ValueError(f"the base {self.base!r} is none of the variants: {', '.join(self.variants)}")
        for name in {*self.versus, *self.versus.values()} - self.variants.keys():
            raise ValueError(f"versus names {name!r}, which is none of the variants: {', '.join(self.variants)}")
        if self.seeds < 1 or not self.methods or not self.data:
            raise ValueError("a study needs a method, a set of images and a seed at least")
        for name, settings in {"the study": self.settings, **self.variants}.items():
            if name != "the study" and (Path(name).name != name or name in (".", "..")):
                raise ValueError(f"a variant's name is a folder's name too: not {name!r}")
            if not isinstance(settings, Mapping) or _OWN & settings.keys():
                raise ValueError(f"{name} may set anything but {', '.join(sorted(_OWN))}: {settings}")
        if _OWN_EVALUATION & self.evaluation.keys():
            raise ValueError(f"judging may say anything but {', '.join(sorted(_OWN_EVALUATION))}")
        judging = self.judged(Path())
        places: dict[Path, Cell] = {}
        for cell in self.cells():
            other = places.setdefault(cell.place, cell)
            if other != cell:
                raise ValueError(f"{cell.data} and {other.data} would share the folder {cell.place}: rename one")
            config = self.configs[cell] = self._config(cell)
            method = parse(config.method, config.adc)
            method.build(**config.options)
            policies.policy(config.augment or method.augment)
            if judging.split == "val" and config.val_images == 0:
                raise ValueError("judging on held-out training images takes some: set val_images")

    def cells(self) -> Iterator[Cell]:
        """Seed by seed, so that a study that is stopped early has whole pairs."""
        for seed, data, method, variant in product(range(self.seeds), self.data, self.methods, self.variants):
            yield Cell(data, method, variant, seed)

    def config(self, cell: Cell) -> ResolvedPretrainConfig:
        """How a cell is trained."""
        return self.configs[cell]

    def _config(self, cell: Cell) -> ResolvedPretrainConfig:
        """A recipe's values, then the study's, then the variant's; no run chooses anything for itself."""
        asked = {**self.settings, **self.variants[cell.variant]}
        constrain = asked.pop("constrain", "none")
        config = PretrainConfig(method=cell.method if constrain == "none" else f"{cell.method}+{constrain}")
        if "recipe" in asked:
            config = with_recipe(config, asked.pop("recipe"))
        config = completed(config)
        values = _plain(config)
        for name in asked:
            if name not in values:
                raise ValueError(f"unknown configuration key {name!r}{nearest(name, values)}")
        asked["options"] = {**config.options, **asked.get("options", {})}
        values |= {**asked, "data": cell.data, "seed": cell.seed}
        # Through the command line: a word where a number should be is refused here, in its words.
        parsed = tyro.cli(PretrainConfig, args=_flags(PretrainConfig, values), config=(tyro.conf.OmitArgPrefixes,))
        return resolved(replace(parsed, recipe=config.recipe, auto=False))

    def judged(self, run: Path, references: bool = False, artifacts: bool = False) -> EvaluateConfig:
        """How a run is judged."""
        own = {"run": run, "references": references, "artifacts": artifacts}
        return from_dict(EvaluateConfig, {**self.evaluation, **own})


def flags(config: PretrainConfig | EvaluateConfig) -> list[str]:
    """The command line that says this configuration: what matters most, and whatever is not a default."""
    return _flags(PretrainConfig if isinstance(config, PretrainConfig) else type(config), _plain(config))


def _plain(config: PretrainConfig | EvaluateConfig) -> Settings:
    """By name, those of a group among the others, as the command line has them."""
    values = to_dict(config)
    for group in groups(type(config)):
        values |= values.pop(group)
    return values


def _flags(kind: type[PretrainConfig] | type[EvaluateConfig], values: Settings) -> list[str]:
    usual = {field.name: field.default for one in (kind, *groups(kind).values()) for field in fields(one)}
    found: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        said = name in ("method", "data", "seed") and value is not None  # even where it is the default
        if name in ("recipe", "run") or (_same(value, usual[name]) and not said):
            continue
        if isinstance(usual[name], bool) and isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            found += [f"--{flag}", *(str(part) for item in value.items() for part in item)] if value else []
        else:
            found += [f"--{flag}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return found


def _same(value: Any, usual: Any) -> bool:
    """Whether a plain value is that of a default, whose tuples are lists in JSON."""
    return bool(value == (list(usual) if isinstance(usual, tuple) else usual))


def from_flags(config: CompareConfig) -> Study:
    """Methods with and without constraints, the first of which is the base; or a study's file with these on top."""
    settings, judging = _typed(config.settings), _typed(config.evaluation)
    if config.study is not None:
        if config.methods or config.constrain:
            raise ValueError("a study's file says which methods and variants: not with --methods or --constrain")
        study = from_file(config.study, config.scale)
        return replace(
            study,
            data=config.data or study.data,
            seeds=study.seeds if config.seeds is None else config.seeds,
            settings={**study.settings, **settings},
            evaluation={**study.evaluation, **judging},
        )
    methods = _apart(config.methods) or ("simclr", "byol", "barlow_twins", "vicreg")
    constrain = _apart(config.constrain) or ("none", "dcm", "lpm", "adc")
    return Study(
        title=f"{', '.join(methods)} with {', '.join(constrain)}",
        methods=methods,
        data=config.data or ("fashion-mini",),
        seeds=3 if config.seeds is None else config.seeds,
        base=constrain[0],
        variants={name: {"constrain": name} for name in constrain},
        settings=settings,
        evaluation=judging,
    )


def read(path: Path) -> dict[str, Any]:
    """What stands in a study's file, unchecked."""
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
    return content


def from_file(path: Path, scale: str) -> Study:
    """A study at one of its scales, whose values come on top of the file's own."""
    content = read(path)
    scales = content.pop("scales", {})
    if scale not in scales:
        raise ValueError(f"{path} has no scale {scale!r}{nearest(scale, scales)} (it has: {', '.join(scales)})")
    for values in (content, *scales.values()):
        if unknown := values.keys() - _KEYS:
            raise ValueError(f"{path}: unknown key {min(unknown)!r}{nearest(min(unknown), _KEYS)}")
    for name, value in scales[scale].items():
        content[name] = {**content.get(name, {}), **value} if isinstance(value, Mapping) else value
    if missing := _NEEDED - content.keys():
        raise ValueError(f"{path} does not say {', '.join(sorted(missing))}")
    if not isinstance(content["seeds"], int):
        raise ValueError(f"{path}: seeds is a number of runs, not {content['seeds']!r}")
    return Study(**content | {name: tuple(content[name]) for name in ("methods", "data")})


def _apart(names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Words apart, whether blanks or commas stand between them."""
    return tuple(part for name in names or () for part in name.split(",") if part)


def _typed(settings: Mapping[str, str]) -> Settings:
    """Values as they would stand in a study's file: epochs 6 is a number, views gentle a word."""
    return {name: _value(text) for name, text in settings.items()}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text.lower() if text in ('True', 'False') else text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
