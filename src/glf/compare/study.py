"""What is compared: from flags, or from a file that says it all."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from glf.config import AdcOptions, CompareConfig, PretrainConfig, from_dict, nearest, to_dict
from glf.methods import parse
from glf.recipes import completed, with_recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = dict[str, Any]  # of PretrainConfig, by name; those of ADC stand among them
_ADC = set(to_dict(AdcOptions()))


class Cell(NamedTuple):
    """One run: a method in one of its variants, on one set of images, from one seed."""

    data: str
    method: str
    variant: str
    seed: int

    @property
    def place(self) -> Path:
        """Where it lies below the study's directory."""
        return Path(Path(self.data).stem, self.method.replace("+", "-"), self.variant, str(self.seed))


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
    judging: Settings = field(default_factory=dict)  # of EvaluateConfig
    finding: str = ""
    cost: str = ""

    def __post_init__(self) -> None:
        if self.base not in self.variants:
            raise ValueError(f"the base {self.base!r} is none of the variants: {', '.join(self.variants)}")
        if self.seeds < 1 or not self.methods or not self.data:
            raise ValueError("a study needs a method, a set of images and a seed at least")
        for cell in self.cells():  # whatever is wrong in a setting is said before hours have passed
            config = self.config(cell)
            parse(config.method, config.adc).build(**config.options)

    def cells(self) -> Iterator[Cell]:
        """Seed by seed, so that a study that is stopped early has whole pairs."""
        for seed, data, method, variant in product(range(self.seeds), self.data, self.methods, self.variants):
            yield Cell(data, method, variant, seed)

    def config(self, cell: Cell) -> PretrainConfig:
        """How a cell is trained: a recipe's values, then the study's, then the variant's."""
        asked = {**self.settings, **self.variants[cell.variant]}
        constrain = asked.pop("constrain", "none")
        config = PretrainConfig(method=cell.method if constrain == "none" else f"{cell.method}+{constrain}")
        if "recipe" in asked:
            config = with_recipe(config, asked.pop("recipe"))
        adc = {name: asked.pop(name) for name in _ADC & asked.keys()}
        values = {**to_dict(config), **asked, "data": cell.data, "seed": cell.seed}
        config = completed(from_dict(PretrainConfig, values))
        return replace(config, adc=replace(config.adc, **adc))


def from_flags(config: CompareConfig) -> Study:
    """Methods with and without constraints, the first of which is the base."""
    return Study(
        title=f"{', '.join(config.methods)} with {', '.join(config.constrain)}",
        methods=config.methods,
        data=config.data or ("fashion-mini",),
        seeds=config.seeds or 3,
        base=config.constrain[0],
        variants={name: {"constrain": name} for name in config.constrain},
        settings=_typed(config.settings),
    )


def from_file(path: Path, scale: str, data: tuple[str, ...] | None = None, seeds: int | None = None) -> Study:
    """A study at one of its scales: a table in the file whose values come on top of the file's own."""
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
    known = {"title", "methods", "data", "seeds", "base", "variants", "settings", "judging", "finding", "cost"}
    scales = {name: value for name, value in content.items() if name not in known and isinstance(value, dict)}
    if scale not in scales:
        raise ValueError(f"{path} has no scale {scale!r}{nearest(scale, scales)} (it has: {', '.join(scales)})")
    values = {name: value for name, value in content.items() if name not in scales}
    for name, value in scales[scale].items():
        values[name] = {**values.get(name, {}), **value} if isinstance(value, Mapping) else value
    if unknown := values.keys() - known:
        raise ValueError(f"{path}: unknown key {min(unknown)!r}{nearest(min(unknown), known)}")
    if missing := {"title", "methods", "data", "seeds", "base", "variants"} - values.keys():
        raise ValueError(f"{path} does not say {', '.join(sorted(missing))}")
    values |= {"methods": tuple(values["methods"]), "data": data or tuple(values["data"])}
    return Study(**{**values, "seeds": seeds or values["seeds"]})


def _typed(settings: Mapping[str, str]) -> Settings:
    """Values as they would stand in a study's file: epochs 6 is a number, views gentle a word."""
    return {name: _value(text) for name, text in settings.items()}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
