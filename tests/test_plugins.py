"""Plug-ins in one process: what they add, how they are found again, and what is said about broken ones."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import glf
from glf import plugins
from glf.comparison.runs import run_key
from glf.comparison.study import Study, flags
from glf.config.adc import AdcOptions
from glf.config.base import from_dict, to_dict
from glf.config.training import PretrainConfig, with_defaults
from glf.methods import METHODS, parse, register_constraint, with_plugins
from glf.methods.constraints import CONSTRAINTS
from plugin_files import OWN_TERMS, constraint, installed, kept_tables


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    with kept_tables():
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(folder: Path, source: str, name: str = "mine.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(source)
    return folder / name


def named(*paths: Path | str) -> tuple[str, ...]:
    """Name plug-ins as on the command line, and execute them."""
    pinned = plugins.pin(map(str, paths))
    plugins.load(pinned)
    return pinned


def weights(spec: str, **options: float) -> dict[str, float]:
    return {term.name: weight for weight, term in parse(spec).build(**options).parts}


def test_the_example_adds_a_method_and_a_constraint_in_thirty_lines() -> None:
    assert len(OWN_TERMS.read_text().splitlines()) <= 30
    named(OWN_TERMS)
    assert weights("huber") == {"huber": 50.0, "variance": 25.0, "covariance": 2.0}
    assert weights("huber", weight=3)["huber"] == 3.0
    assert weights("vicreg+norm")["norm"] == pytest.approx(0.1 * METHODS["vicreg"].scale)
    assert weights("vicreg+norm", **{"norm.weight": 0.2})["norm"] == pytest.approx(0.2 * METHODS["vicreg"].scale)
    assert [term.name for _, term in parse("huber+norm+lpm").build().parts][-2:] == ["norm", "lpm"]


MISTAKES = {
    "def f(:": r"SyntaxError: invalid syntax \(mine.py, line 1\)",
    "\n\nunknown": "NameError in line 3: name 'unknown' is not defined",
    "import no_such_module": "ModuleNotFoundError in line 1: No module named 'no_such_module'",
    "import sys; sys.exit(0)": "SystemExit in line 1",
    "x = 1": "it adds nothing: call glf.register_method or glf.register_constraint in it",
    "import glf; glf.register_method(glf.METHODS['byol'])": "there is a method or constraint 'byol' already",
    "import glf; glf.register_constraint('simclr', glf.Variance)": "there is a method or constraint 'simclr' already",
    "import glf; glf.register_constraint('No-Name', glf.Variance)": "'No-Name' cannot be a name: use small letters",
    "import glf; glf.register_constraint('none', glf.Variance)": "'none' cannot be a name",
    "import glf; glf.register_constraint('t', glf.MSE)": "t has the term mse, whose role is 'align', not 'constrain'",
    "import glf; glf.register_constraint('t', glf.Variance, {'x': 1.0})": "TypeError in line 1",
    "import glf; glf.register_constraint('t', type('T', (glf.Term,), {}))": "the term T has no name",
    "import glf\nclass T(glf.Term):\n    name, role, formula, needs = 't', 'constrain', '', {'priors'}\n"
    "glf.register_constraint('t', T)": "t needs {'priors'}, which is not a set of these: z, h",
}


@pytest.mark.parametrize("source", MISTAKES)
def test_a_mistake_in_a_plugin_is_one_sentence_with_its_line(source: str, tmp_path: Path) -> None:
    tables = dict(METHODS), dict(CONSTRAINTS)
    with pytest.raises(ValueError, match=MISTAKES[source]) as caught:
        named(written(tmp_path, source))
    assert str(caught.value).startswith(f"the plug-in {tmp_path / 'mine.py'} failed: ")
    assert "\n" not in str(caught.value)
    assert tables == (METHODS, CONSTRAINTS)


def test_two_plugins_cannot_share_a_name_and_one_may_replace_its_own(tmp_path: Path) -> None:
    mine = written(tmp_path, constraint("own"))
    named(mine)
    with pytest.raises(ValueError, match=re.escape(f"'own' already from the plug-in {mine}: choose another name")):
        named(written(tmp_path, constraint("own", 2.0), "other.py"))
    named(written(tmp_path, constraint("own", 7.0)))  # edited, in a notebook
    assert weights("align+own")["variance"] == 7.0
    named(written(tmp_path, constraint("own")))  # and back: what was executed last is in the table
    assert weights("align+own")["variance"] == 1.0
    named(written(tmp_path, constraint("own"), "copy.py"))  # the same


def test_one_may_register_without_a_plugin_and_again(tmp_path: Path) -> None:
    for weight in (1.0, 2.0):
        register_constraint("own", lambda weight: weight * glf.Variance(), {"weight": weight})
        assert weights("align+own")["variance"] == weight
    with pytest.raises(ValueError, match="'own' already: choose"):
        named(written(tmp_path, constraint("own")))


def test_data_classes_and_annotations_as_text_work(tmp_path: Path) -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport glf\n\n"
        "@dataclass\nclass Given:\n    weight: float = 4.0\n\n"
        "glf.register_constraint('own', lambda weight: weight * glf.Variance(), vars(Given()))\n"
    )
    named(written(tmp_path, source))
    assert weights("align+own")["variance"] == 4.0


# --- options of constraints


@pytest.mark.parametrize(
    ("option", "attribute"),
    [("lpm.effective_dim", "effective_dim"), ("lpm.prior_effective_dim", "prior_effective_dim")],
)
def test_options_of_lpm_are_those_of_the_flags(option: str, attribute: str) -> None:
    def found(adc: AdcOptions, **options: float) -> float:
        _, term = parse("simclr+lpm", adc).build(**options).constrain.parts[-1]  # type: ignore[union-attr]
        return float(getattr(term.neighbours, attribute))  # type: ignore[arg-type]

    assert found(AdcOptions(**{attribute: 3.0})) == found(AdcOptions(), **{option: 3.0}) == 3.0  # type: ignore[arg-type]
    assert found(AdcOptions(**{attribute: 5.0}), **{option: 3.0}) == 3.0  # type: ignore[arg-type]
    assert found(AdcOptions()) == getattr(AdcOptions(), attribute)


def test_every_option_of_every_constraint_can_be_set_alone() -> None:
    for name, one in CONSTRAINTS.items():
        for option, default in one.defaults(AdcOptions()).items():
            parse(f"simclr+{name}").build(**{f"{name}.{option}": type(default)(default + 2)})
    assert weights("simclr+dcm+lpm", **{"dcm.nu": 7.0}) == {**weights("simclr+dcm+lpm"), "dcm": 7.0}


@pytest.mark.parametrize(
    ("spec", "option", "words"),
    [
        ("vicreg+lpm", "lpm.effectve_dim", "no option 'lpm.effectve_dim' - did you mean 'lpm.effective_dim'"),
        ("vicreg", "lpm.effective_dim", r"vicreg has no option 'lpm.effective_dim' \(it has: invariance"),
        ("vicreg+dcm", "lpm.effective_dim", r"vicreg\+dcm has no option"),
    ],
)
def test_options_of_what_is_not_there_are_refused(spec: str, option: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(spec).build(**{option: 4.0})
    with pytest.raises(ValueError, match=r"lpm\.effective_dim of vicreg\+lpm must be at least 0, got -1"):
        parse("vicreg+lpm").build(**{"lpm.effective_dim": -1.0})


# --- recorded, and found again


def test_a_config_records_plugins_with_their_hashes(tmp_path: Path) -> None:
    mine = written(tmp_path, constraint("own"))
    config = PretrainConfig(method="align+own", plugin=plugins.pin([str(mine)]))
    assert with_plugins(config) == config
    assert config.plugin == (f"{mine}@sha256:{plugins.digest(config.plugin[0])}",)
    assert from_dict(PretrainConfig, to_dict(config)) == config
    assert from_dict(PretrainConfig, {"plugin": mine}).plugin == (str(mine),)  # one, from Python
    assert plugins.pin(config.plugin) == config.plugin
    mine.write_text(constraint("own", 2.0))
    with pytest.raises(ValueError, match=r"has changed: its SHA-256 was .*Restore it, or name an unchanged copy"):
        plugins.pin(config.plugin)
    with pytest.raises(ValueError, match="recorded without the hash"):
        plugins.load([str(mine)])


def test_a_plugin_that_was_never_named_is_not_executed(tmp_path: Path, cache: Path) -> None:
    mine = written(tmp_path, f"import os; os.mkdir({str(tmp_path / 'done')!r})\n{constraint('own')}")
    recorded = plugins.Plugin(str(mine), plugins._hash_of(mine))
    for note in (None, "damaged", "folder"):
        if note == "folder":
            (cache / "plugins" / recorded.sha256).mkdir(parents=True)
        elif note:  # what another file allows is not for this one
            written(cache / "plugins", str(mine), 64 * "0")
        with pytest.raises(ValueError, match=r"never named on this machine: read it, then .*glf methods --plugin"):
            plugins.load([str(recorded)])
        assert not (tmp_path / "done").exists()
    (cache / "plugins" / recorded.sha256).rmdir()
    plugins.pin([str(mine)])
    plugins._named.clear()  # another process, later
    plugins.load([str(recorded)])
    assert (tmp_path / "done").exists()


def test_a_plugin_is_found_where_it_was_named_since(tmp_path: Path, cache: Path) -> None:
    mine = written(tmp_path, constraint("own"))
    (recorded,) = plugins.pin([str(mine)])
    moved = tmp_path / "elsewhere" / "renamed.py"
    moved.parent.mkdir()
    mine.rename(moved)
    with pytest.raises(FileNotFoundError, match=rf"no plug-in {mine}, which this run needs .*put the file back, or"):
        plugins.load([recorded])
    plugins.pin([str(moved)])
    plugins.load([recorded])
    assert weights("align+own")["variance"] == 1.0
    assert with_plugins(PretrainConfig(method="align+own", plugin=(recorded,))).plugin == (recorded,)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for name in ("missing.py", "folder.py"):
        with pytest.raises(FileNotFoundError, match=f"no plug-in .*{name}: it is missing, or not a file"):
            plugins.pin([str(tmp_path / name)])
    with pytest.raises(ValueError, match=r"has a plug-in 'mine' \(installed: none\); the name of a file ends in .py"):
        plugins.pin(["mine"])


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path, "glf_test_plugin", constraint("own", 3.0)))
    assert weights("align+own")["variance"] == 3.0
    config = with_plugins(PretrainConfig(method="align+own"))
    assert config.plugin == (f"glf_test_plugin@sha256:{plugins._hash_of(tmp_path / 'glf_test_plugin.py')}",)
    (tmp_path / "glf_test_plugin.py").write_text(constraint("own", 4.0))
    with pytest.raises(ValueError, match=r"glf_test_plugin has changed.*install its package as it was"):
        plugins.load(config.plugin)
    (tmp_path / "glf_test_plugin.py").unlink()
    del sys.modules["glf_test_plugin"]
    importlib.invalidate_caches()
    with pytest.raises(ValueError, match="names the module glf_test_plugin, which is not there"):
        plugins.load(config.plugin)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"'glf_test_plugin' \(installed: none\), which this run needs"):
        plugins.load(config.plugin)


# --- comparisons


def study(plugin: object, constrain: str = "own") -> Study:
    return Study(
        title="own", methods=("align",), data=("fashion-mini",), seeds=1, base="none",
        variants={"none": {}, "own": {"constrain": constrain}}, settings={"plugin": plugin},
    )  # fmt: skip


def keys(one: Study) -> list[str]:
    return [run_key(*one.configs(cell)) for cell in one.cells()]


def test_a_study_knows_its_runs_by_the_content_of_its_plugins(tmp_path: Path) -> None:
    mine = written(tmp_path, constraint("own"))
    one = study(str(mine))
    assert keys(one) == keys(study([str(mine)]))
    copy = tmp_path / "copy" / "mine.py"
    copy.parent.mkdir()
    mine.rename(copy)
    with kept_tables():
        plugins.pin([str(copy)])
        assert keys(study(str(copy))) == keys(one)
    copy.rename(mine)
    mine.write_text(constraint("own", 2.0))
    assert not set(keys(study(str(mine)))) & set(keys(one))


def test_the_flags_of_a_run_repeat_the_plugins(tmp_path: Path) -> None:
    paths = [str(written(tmp_path, constraint(name), f"{name}.py")) for name in ("one", "two")]
    one = study(paths, "two")
    words = flags(one.config(next(one.cells())))
    assert [words[i + 1].partition("@")[0] for i, word in enumerate(words) if word == "--plugin"] == paths


def test_runs_without_plugins_have_no_such_flag() -> None:
    assert "--plugin" not in flags(with_defaults(PretrainConfig()))
