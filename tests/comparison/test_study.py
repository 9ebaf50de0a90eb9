"""Studies from flags and from files: the config of each run, and errors before the first run starts."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from glf.comparison import processes, worker
from glf.comparison.conduct import conduct
from glf.comparison.runs import reference_key, run_key
from glf.comparison.study import Cell, Study, flags, from_file, from_flags
from glf.config.base import from_dict
from glf.config.evaluation import CompareConfig, EvaluateConfig
from glf.config.training import (
    AdaptConfig,
    AdcOptions,
    PretrainConfig,
    ResolvedAdaptConfig,
    ResolvedPretrainConfig,
    config_type,
    with_defaults,
)

FILE = """
title = "A study"
methods = ["simclr", "align+sphere"]
data = ["fashion-mini"]
seeds = 2
base = "none"
settings = { recipe = "tiny", epochs = 3, projector = [64, 32] }

[variants]
none = {}
strong = { constrain = "adc", nu = 0.5, options = { temperature = 0.5 } }

[scales.tiny]
cost = "eight runs"
settings = { max_images = 500 }

[scales.paper]
seeds = 5
methods = ["simclr"]
settings = { epochs = 1000, backbone = "resnet18" }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(FILE.replace('"align+sphere"', '"dcl"'))
    return path


def test_variants_override_the_study_and_the_study_overrides_the_recipe(file: Path) -> None:
    study = from_file(file, "tiny")
    config = study.config(Cell("fashion-mini", "simclr", "strong", 1))
    assert config.method == "simclr+adc"
    assert (config.augment, config.batch_size) == ("gentle", 128)  # from the recipe
    assert (config.epochs, config.max_images, config.projector) == (3, 500, (64, 32))
    assert (config.adc.nu, config.adc.upsilon) == (0.5, AdcOptions().lpm_weight)
    assert (config.options, config.seed) == ({"temperature": 0.5}, 1)
    assert study.config(Cell("fashion-mini", "dcl", "none", 0)).method == "dcl"


def test_a_scale_overrides_the_file(file: Path) -> None:
    study = from_file(file, "paper")
    assert (study.seeds, study.methods) == (5, ("simclr",))
    assert study.settings == {"recipe": "tiny", "epochs": 1000, "projector": [64, 32], "backbone": "resnet18"}
    assert len(list(study.cells())) == 5 * 2


def test_cells_are_ordered_by_seed_so_that_pairs_are_complete(file: Path) -> None:
    cells = list(from_file(file, "tiny").cells())
    assert [cell.seed for cell in cells] == [0] * 4 + [1] * 4
    assert len({cell.path for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('base = "none"', 'base = "nothing"', "base = 'nothing' is not one of the variants: none, strong"),
        ("epochs = 3", "epoch = 3", "unknown configuration key 'epoch' - did you mean 'epochs'"),
        ('"simclr"', '"simclrr"', "unknown method 'simclrr' - did you mean 'simclr'"),
        ("temperature = 0.5", "temprature = 0.5", "no option 'temprature'"),
        ('constrain = "adc"', 'constrain = "adcc"', "unknown constraint 'adcc'"),
        ('recipe = "tiny"', 'recipe = "tinny"', "no recipe 'tinny' - did you mean 'tiny'"),
        ("[variants]", "[variants", "is not valid TOML"),
        ('title = "A study"', "", "lacks title"),
        ('title = "A study"', 'title = "A"\nseed = 3', "unknown key 'seed' - did you mean 'seeds'"),
        ("seeds = 2", "seeds = 0", "a study needs at least one method"),
        ("seeds = 2", 'seeds = "2"', "seeds must be a number of runs, got '2'"),
        ("settings = { recipe", "setings = { recipe", "unknown key 'setings' - did you mean 'settings'"),
        ("settings = { max_images", "setings = { max_images", "unknown key 'setings'"),
        ("epochs = 3", 'method = "byol"', "settings must be a table without"),
        ("nu = 0.5", "seed = 3", "strong must be a table without"),
        ("strong =", '"a/b" =', "variant 'a/b' cannot be the name of a folder"),
        ('["fashion-mini"]', '["a/x.npz", "b/x.npz"]', "b/x.npz and a/x.npz would share the folder"),
        ("epochs = 3", 'augment = "gentel"', "unknown augmentation policy 'gentel' - did you mean 'gentle'"),
        ("seeds = 2", "seeds = 2\nevaluation = { splitt = 'val' }", "unknown configuration key 'splitt'"),
        (
            "seeds = 2",
            "seeds = 2\nevaluation = { references = true }",
            "evaluation cannot set artifacts, references, run",
        ),
    ],
)
def test_mistakes_are_errors_before_anything_runs(file: Path, old: str, new: str, words: str) -> None:
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=words):
        from_file(file, "tiny")


def test_values_of_the_wrong_type_give_the_message_of_the_command_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace("epochs = 3", 'epochs = "ten"'))
    with pytest.raises(SystemExit):
        from_file(file, "tiny")
    assert "ten" in capsys.readouterr().err


def test_evaluation_on_held_out_images_needs_held_out_images(file: Path) -> None:
    text = file.read_text().replace("epochs = 3", "epochs = 3, val_images = 0")
    file.write_text(text.replace("seeds = 2", "seeds = 2\nevaluation = { split = 'val' }"))
    with pytest.raises(ValueError, match='split = "val" needs held-out images: set val_images above 0'):
        from_file(file, "tiny")


def test_flags_override_a_study_file(file: Path) -> None:
    study = from_flags(
        CompareConfig(study=file, seeds=1, data=("cifar10",), settings={"epochs": "2", "compile": "False"})
    )
    assert (study.seeds, study.data, len(study.variants)) == (1, ("cifar10",), 2)
    config = study.config(next(study.cells()))
    assert (config.epochs, config.compile, config.max_images) == (2, False, 500)
    with pytest.raises(ValueError, match="not with --methods or --constrain"):
        from_flags(CompareConfig(study=file, methods=("byol",)))


def test_an_unknown_scale_is_an_error(file: Path) -> None:
    with pytest.raises(ValueError, match=r"no scale 'tinny' - did you mean 'tiny'\? \(it has: tiny, paper\)"):
        from_file(file, "tinny")


def test_flags_make_a_study() -> None:
    asked = CompareConfig(
        methods=("byol",),
        constrain=("none", "lpm"),
        seeds=1,
        settings={"epochs": "6", "augment": "gentle", "nu": "0.1"},
    )
    study = from_flags(asked)
    assert isinstance(study, Study)
    config = study.config(Cell("fashion-mini", "byol", "lpm", 0))
    assert (config.method, config.epochs, config.augment, config.adc.nu) == ("byol+lpm", 6, "gentle", 0.1)
    assert from_flags(CompareConfig(methods=("simclr,byol", "moco"))).methods == ("simclr", "byol", "moco")


def test_the_command_line_of_a_run_gives_its_config() -> None:
    """Values of every type survive the round trip through flags."""
    import tyro

    config = PretrainConfig(
        method="swav+adc",
        epochs=7,
        lr=1e-5,
        projector=(64, 32),
        projector_norm=False,
        ema_momentum=(0.9, 1.0),
        options={"temperature": 0.5, "queue": 64},
        adc=AdcOptions(nu=0.125, reading="paper"),
        weights=Path("some/weights.pt"),
        compile=True,
        max_images=100,
    )
    back = tyro.cli(PretrainConfig, args=flags(config), config=(tyro.conf.OmitArgPrefixes,))
    assert back == config
    assert flags(PretrainConfig()) == ["--data", "fashion-mini", "--method", "simclr+lpm", "--seed", "0"]


STUDIES = Path(__file__).parent.parent.parent / "benchmarks" / "studies"


@pytest.mark.parametrize("scale", ["tiny", "night", "paper"])
@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_studies_of_this_repository_are_valid_and_state_their_cost(path: Path, scale: str) -> None:
    # GPUs only, one long scale of CPUs, CPUs only; the others have both
    only = {"imagenet100": ["paper"], "night": ["night"]}
    only |= {name: ["tiny"] for name in ("choose", "adapt", "demo", "lpm")}
    if scale not in only.get(path.stem.partition("_")[0], ["tiny", "paper"]):
        with pytest.raises(ValueError, match="has no scale"):
            from_file(path, scale)
        return
    study = from_file(path, scale)
    assert study.cost.startswith(f"{len(list(study.cells()))} runs")
    assert path.read_text().startswith("# ")
    if scale != "paper":
        assert study.finding
        assert f"{scale}: " in path.read_text()
        assert f"= {len(list(study.cells()))} runs" in path.read_text()


# --- adaptations


def adaptations(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "title": "Adaptations",
        "methods": ("simclr",),
        "data": ("fashion-mini",),
        "seeds": 1,
        "base": "tail",
        "variants": {"tail": {}, "norms": {"train": "norms"}, "bank": {"constrain": "lpm", "lpm_at": "bank"}},
        "settings": {"encoder": "timm:resnet18", "epochs": 3, "l2sp": 0.5},
    }
    return Study(**values | changes)


def test_a_study_with_an_encoder_is_one_of_adaptations() -> None:
    study = adaptations()
    tail, norms, bank = (study.config(cell) for cell in study.cells())
    assert all(isinstance(config, ResolvedAdaptConfig) for config in (tail, norms, bank))
    assert (tail.encoder, tail.epochs, tail.l2sp, tail.train) == ("timm:resnet18", 3, 0.5, "tail")
    assert norms.train == "norms"
    assert (bank.method, bank.adc.lpm_at) == ("simclr+lpm", "bank")
    assert tail.augment == "mild"
    plain = adaptations(variants={"tail": {}}, settings={"epochs": 3})
    assert not isinstance(plain.config(next(plain.cells())), AdaptConfig)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"epochs": 3, "l2sp": 0.5}}, "unknown configuration key 'l2sp'"),
        ({"settings": {"encoder": "timm:resnet18", "trian": "all"}}, "unknown configuration key 'trian'"),
        ({"variants": {"tail": {"tail": 2, "train": "all"}}}, "--tail only applies to --train tail"),
    ],
)
def test_mistakes_in_adaptations(changes: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((ValueError, SystemExit)) as caught:
        adaptations(**changes)
    assert words in f"{caught.value} {' '.join(capsys.readouterr().err.split())}"


def test_the_command_line_of_an_adaptation_gives_its_config() -> None:
    import tyro

    config = AdaptConfig(
        encoder="torchvision:resnet18",
        method="byol+lpm",
        train="norms",
        views=6,
        l2sp=0.25,
        choose=False,
        lr=1e-5,
        adc=AdcOptions(lpm_at="bank"),
        weights=Path("some/weights.pt"),
    )
    written = flags(config)
    assert written[0] == "torchvision:resnet18"
    assert "--no-choose" in written
    assert tyro.cli(AdaptConfig, args=written, config=(tyro.conf.OmitArgPrefixes,)) == config


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"views": 6}, False),
        ({"image_size": 64}, False),
        ({"encoder": "timm:resnet34"}, False),
        ({"l2sp": 1.0}, False),
        ({"tail": 2}, False),
        ({"norms": "data"}, False),
        ({"choose": False}, False),
        ({"weights": Path("other.pth")}, False),
        ({"adc": AdcOptions(lpm_at="h")}, False),
        ({"prior": "timm:resnet18", "prior_size": 64, "prior_weights": Path("other.pth")}, True),
        ({"backbone": "timm:resnet18", "stem": "standard"}, True),
        ({"download": True, "workers": 3}, True),
    ],
    ids=str,
)
def test_the_key_of_an_adaptation_has_what_it_learns_from(changes: dict[str, Any], same: bool) -> None:
    study = adaptations()
    training, evaluation = study.configs(next(study.cells()))
    assert (run_key(replace(training, **changes), evaluation) == run_key(training, evaluation)) == same


def test_references_of_an_adaptation_depend_on_its_encoder_and_not_on_training() -> None:
    study = adaptations()
    training, evaluation = study.configs(next(study.cells()))
    key = reference_key(training, evaluation)
    assert reference_key(replace(training, l2sp=1.0, train="all", lr=1.0), evaluation) == key
    assert reference_key(replace(training, encoder="timm:resnet34"), evaluation) != key
    assert reference_key(replace(training, image_size=64), evaluation) != key


def test_a_new_option_of_adaptations_does_not_change_the_keys_of_pretraining() -> None:
    config = ResolvedPretrainConfig()
    key = run_key(config, EvaluateConfig(run=Path()))
    assert run_key(replace(config, adc=AdcOptions(lpm_at=None)), EvaluateConfig(run=Path())) == key
    assert run_key(replace(config, adc=AdcOptions(lpm_at="h")), EvaluateConfig(run=Path())) != key


def test_adaptations_are_conducted_and_not_done_twice(
    few_images: str, tmp_path: Path, small_run: Callable[..., Path], console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of each process, done in this one."""
    encoder = small_run(data=few_images, max_images=None, method="simclr", image_size=16, batch_size=32)
    study = adaptations(
        data=(few_images,),
        variants={"tail": {}, "norms": {"train": "norms"}},
        settings={"encoder": f"run:{encoder}", "epochs": 1, "batch_size": 32, "val_images": 32, "device": "cpu"},
        evaluation={"suite": ["knn"], "device": "cpu"},
    )
    jobs = []

    class Done(subprocess.Popen[bytes]):
        """A process that has ended as soon as it has started."""

        def __init__(self, command: list[str], **options: Any) -> None:
            self.returncode = 0
            jobs.append(command[-1])
            job = json.loads(Path(command[-1]).read_text())
            training = with_defaults(from_dict(config_type(job["pretrain"]), job["pretrain"]))
            worker.work(training, from_dict(EvaluateConfig, job["evaluate"]))

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=Done, STDOUT=None))
    monkeypatch.setattr(sys, "argv", ["glf"])
    out = tmp_path / "out"
    content = conduct(study, out, 1, console)
    assert content["failed"] == {}
    assert [(run["variant"], run["command"].split()[:3]) for run in content["runs"]] == [
        ("tail", ["glf", "adapt", f"run:{encoder}"]),
        ("norms", ["glf", "adapt", f"run:{encoder}"]),
    ]
    assert content["references"][few_images].keys() == {"pixels", "frozen"}
    assert len(jobs) == 2
    again = conduct(study, out, 1, console)
    assert again["runs"] == content["runs"]
    assert len(jobs) == 2
