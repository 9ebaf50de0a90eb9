"""Studies from flags and from files: the config of each run, and errors before the first run starts."""

from pathlib import Path

import pytest

from glf.comparison.study import Cell, Study, flags, from_file, from_flags
from glf.config.evaluation import CompareConfig
from glf.config.training import AdcOptions, PretrainConfig

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
    assert (config.adc.nu, config.adc.upsilon) == (0.5, AdcOptions().upsilon)
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


@pytest.mark.parametrize("scale", ["tiny", "paper"])
@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_studies_of_this_repository_are_valid_and_state_their_cost(path: Path, scale: str) -> None:
    if (path.stem.partition("_")[0], scale) in {("imagenet100", "tiny"), ("choose", "paper")}:  # GPUs only, CPUs only
        with pytest.raises(ValueError, match="has no scale"):
            from_file(path, scale)
        return
    study = from_file(path, scale)
    assert study.cost.startswith(f"{len(list(study.cells()))} runs")
    assert path.read_text().startswith("# ")
    if scale == "tiny":
        assert study.finding
        assert f"= {len(list(study.cells()))} runs" in path.read_text()
