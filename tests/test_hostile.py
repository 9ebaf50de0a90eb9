"""Settings, names and files that cannot be meant: one line that names the value, exit code 2, no traceback."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from PIL import Image

import forked
from glf.cli import main
from glf.commands import COMMANDS
from glf.config.base import groups
from glf.config.bounds import BOUNDS
from glf.config.training import PretrainConfig
from glf.data.sources import load_images
from glf.result import update_result
from glf.train.run import pretrain
from reporting.samples import a_comparison, a_run

GLF = [sys.executable, "-c", "from glf.cli import main; main()"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must end in one line and exit code 2; return the line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 2
    shown = capsys.readouterr().err
    assert len(shown.strip().splitlines()) == 1, shown
    return shown.strip()


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_among_the_options_has_bounds(name: str) -> None:
    config = COMMANDS[name].config
    for kind in (config, *(type(one) for one in groups(config).values())):
        hints = get_type_hints(kind)
        numeric = {one.name for one in fields(kind) if re.search(r"\b(int|float)\b", _name(hints[one.name]))}
        assert numeric - {"settings", "finetune", "detect", "adc"} <= BOUNDS.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretrain --lr inf", "lr must be a finite number, got inf"),
        ("pretrain --nu nan", "nu must be at least 0, got nan"),
        ("pretrain --upsilon inf", "upsilon must be a finite number, got inf"),
        ("pretrain --rho 2", "rho must be above 2, got 2.0"),
        ("pretrain --projector 0", "projector must be at least 1, got (0,)"),
        ("pretrain --projector 64 -5", "projector must be at least 1, got (64, -5)"),
        ("pretrain --options temperature nan", "temperature of --options must be above 0, got nan"),
        ("pretrain --options temperature 0", "temperature of --options must be above 0, got 0"),
        ("pretrain --data not-there --options temperature 0", "temperature of --options must be above 0, got 0"),
        ("pretrain --data not-there --image-size 9000 --batch-size 256", "px need"),
        ("pretrain --image-size 50000", "image_size must be at most 10000, got 50000"),
        ("pretrain --image-size 9000 --batch-size 256", "px need"),
        ("pretrain --ema-momentum 0.9 1.5", "ema_momentum must be at most 1"),
        ("pretrain --seed -1", "seed must be at least 0, got -1"),
        ("pretrain --device gpu", "no gpu that torch can use"),
        ("embed pixels . --device mps", "no mps that torch can use"),
        ("embed pixels . --batch-size 0", "batch_size must be at least 1, got 0"),
        ("embed pixels . --batch-size -3", "batch_size must be at least 1, got -3"),
        ("search pixels a b --k 0", "k must be at least 1, got 0"),
        ("outliers pixels . --similarity nan", "similarity must be above 0, got nan"),
        ("evaluate run --fractions 0.1 2", "fractions must be at most 1"),
    ],
)
def test_settings(arguments: str, message: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    import torch

    if "--device" in arguments and (torch.cuda.is_available() or torch.backends.mps.is_available()):
        pytest.skip("this machine has such a device")
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8)).save("image.png")
    assert message in refused(capsys, *arguments.split())
    assert [path.name for path in tmp_path.iterdir()] == ["image.png"]


def test_a_config_of_the_wrong_types_is_refused(tmp_path: Path, capsys: Any) -> None:
    for values, message in (
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"optimizer": "sdg"}, "optimizer must be one of adamw, sgd, lars, got 'sdg'"),
        ({"download": 1}, "download must be true or false, got 1"),
        ({"projector": {}}, "projector must be a list, got {}"),
        ({"method": None}, "method must be text, got None"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"schema": 2, "method": "simclr", **values}))
        done = forked.run([*GLF, "pretrain", "--resume", "--out", tmp_path])  # without the tests' own checks of types
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    (tmp_path / "config.json").write_text("[]")
    assert "is not a saved config" in refused(capsys, "pretrain", "--resume", "--out", str(tmp_path))


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(evaluation=None), "evaluation must be a table"),
        (lambda c: c["evaluation"]["rows"]["trained"].update(knn5="high"), "rows.trained.knn5 must be a number"),
        (lambda c: c["evaluation"].update(test="many"), "evaluation.test must be a whole number"),
        (lambda c: c["evaluation"].update(percent=3), "evaluation.percent must be a list"),
        (lambda c: c["data"].update(train=10**30), "data.train must be at most"),
        (lambda c: c.update(doctor=float("inf")), "doctor must be a list"),
        (lambda c: c.update(doctor=[{"name": "x"}]), "doctor.0.advice is missing"),
        (lambda c: c.update(backbone="resnet"), "backbone must be a table"),
    ],
)
def test_a_damaged_result_names_the_key(
    change: Callable[[Any], Any], message: str, tmp_path: Path, capsys: Any
) -> None:
    run = a_run(tmp_path / "run")
    content = json.loads((run / "result.json").read_text())
    change(content)
    (run / "result.json").write_text(json.dumps(content))
    line = refused(capsys, "report", str(run), "--out", str(tmp_path / "page.html"))
    assert "result.json is damaged, or was edited" in line
    assert message in line
    assert not (tmp_path / "page.html").exists()


def test_options_of_a_stored_evaluation_are_named_with_their_file(tmp_path: Path, capsys: Any) -> None:
    run = a_run(tmp_path / "run")
    content = json.loads((run / "result.json").read_text())
    content["evaluation"]["config"] = {"run": "x", "knn_k": 0}
    (run / "result.json").write_text(json.dumps(content))
    line = refused(capsys, "verify", str(run))
    assert "result.json is damaged, or was edited: evaluation.config: knn_k must be at least 1, got 0" in line


def test_other_damaged_files_of_a_report(tmp_path: Path, capsys: Any) -> None:
    def report() -> str:
        return refused(capsys, "report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html"))

    run = a_run(tmp_path / "run")
    figures = run / "artifacts" / "report.json"
    whole = json.loads(figures.read_text())
    near = whole["neighbours"]
    (query,) = near["queries"]
    for change, message in (
        ({"columns": {"trained": {"spectrum": [None]}}}, "columns.trained.spectrum.0 must be a number"),
        ({"views": {**whole["views"], "sheet": {"count": 10**9, "columns": 2}}}, "views.sheet.count must be at most"),
        ({"map": {**whole["map"], "points": [[1]]}}, "map.points.0 must be a list of 2"),
        ({"map": {**whole["map"], "group": [0, 1, 0, 10**30]}}, "map.group.3 must be from -1 (no label) to 1"),
        ({"map": {**whole["map"], "group": [0]}}, "map.group has 1 entries, and map.points 4"),
        ({"map": {**whole["map"], "points": [], "group": []}}, "map.points is empty"),
        ({"neighbours": {**near, "queries": [{"near": [{"index": 10**9}]}]}}, "neighbours.queries.0.class is missing"),
        (
            {
                "neighbours": {
                    **near,
                    "queries": [{**query, "near": [{"row": 10**30, "class": "cat", "similarity": 1}]}],
                }
            },
            "neighbours.queries.0.near.0.row must be at most",
        ),
        ({"neighbours": {**near, "queries": 2 * [query]}}, "neighbours.sheet.count must be at least 6"),
        ({"outliers": {**whole["outliers"], "histogram": []}}, "outliers.histogram is empty"),
        ({"outliers": {**whole["outliers"], "found": [{"row": 1, "class": None}]}}, "found.0.entropy is missing"),
        ({"views": {**whole["views"], "images": []}}, "views.images is empty"),
    ):
        figures.write_text(json.dumps({**whole, **change}))
        line = report()
        assert message in line
        assert "report.json is damaged, or was edited" in line
    (run / "result.json").write_text(DEEP)
    assert "is not valid JSON" in report()
    shutil.rmtree(run)
    a_comparison(run)
    content = json.loads((run / "compare.json").read_text())
    (run / "compare.json").write_text(json.dumps({key: value for key, value in content.items() if key != "title"}))
    assert "compare.json is damaged, or was edited: title is missing" in report()


def test_a_damaged_log_of_metrics_is_read_as_far_as_possible(tmp_path: Path, capsys: Any) -> None:
    good = '{"step": 1, "epoch": 0, "loss": 1.0, "z/spread": 0.5}\n'
    (tmp_path / "metrics.jsonl").write_bytes((good + DEEP + '\n{"step": "x", "loss": []}\n').encode() + b"\xff\n")
    main(["doctor", str(tmp_path)])
    assert "1 logged steps" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ö [bold]", "x[/red]y", "a:smile:", "a\nb", 'it\'s "quoted" \\ $(id)', "~", "-n"])
def test_names_are_printed_as_they_are(name: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    run = tmp_path / name
    small = {"max_images": 96, "batch_size": 32, "epochs": 1, "val_images": 16, "auto": False, "device": "cpu"}
    pretrain(PretrainConfig(out=run, **small))  # type: ignore[arg-type]
    shown = name.replace("\n", "\\n")
    monkeypatch.chdir(tmp_path)
    for command in (
        "evaluate {} --suite knn",
        "report {} --out page.html",
        "export {} --format safetensors",
        "doctor {}",
    ):
        capsys.readouterr()
        main([word.format(f"./{name}") for word in command.split()])
        if not command.startswith(("doctor", "report")):
            assert shown in capsys.readouterr().out
    assert shown in refused(capsys, "pretrain", "--out", f"./{name}")


def test_a_comparison_in_a_folder_with_brackets(tmp_path: Path, few_images: str, quick_workers: None) -> None:
    """One evaluation alone, given as a word, in a directory whose name rich and glob would take for something."""
    from glf.commands import compare

    settings = {"epochs": "1", "batch_size": "64", "val_images": "16", "device": "cpu"}
    found = compare(
        methods=("simclr",), constrain=("none",), seeds=1, data=(few_images,), settings=settings,
        evaluation={"suite": "knn"}, out=tmp_path / "a [0] [/red]",
    )  # fmt: skip
    assert found["runs"][0]["values"].keys() == {"knn5", "knn"}


@pytest.mark.parametrize("splits", [("colour", "grey"), ("grey", "colour")])
def test_splits_of_different_channels(splits: tuple[str, str], small_run: Any, tmp_path: Path, capsys: Any) -> None:
    grey = load_images("fashion-mini").pixels[:80]
    both = {"grey": grey, "colour": np.repeat(grey, 3, axis=3)}
    labels = np.arange(80) % 4
    for name, (train, test) in {"same": ("colour", "colour"), "mixed": splits}.items():
        np.savez(
            tmp_path / f"{name}.npz",
            train_images=both[train], train_labels=labels, test_images=both[test], test_labels=labels,
        )  # fmt: skip
    run = small_run(data=str(tmp_path / "same.npz"), max_images=None, batch_size=32, val_images=8)
    line = refused(capsys, "evaluate", str(run), "--data", str(tmp_path / "mixed.npz"), "--suite", "knn")
    assert "channels in its training images and" in line


def test_a_colour_query_of_a_grey_run(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    pixels = load_images("fashion-mini").pixels[:40, :, :, 0]
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(f"photos/{number}.png")
    Image.fromarray(np.stack([pixels[3]] * 3, 2)).save("query.png")
    small = "--max-images 40 --batch-size 16 --epochs 1 --no-auto --device cpu --out run".split()
    main(["pretrain", "--data", "photos", *small])
    capsys.readouterr()
    main(["search", "run", "query.png", "photos", "--k", "1"])
    assert "1.0000  photos/3.png" in capsys.readouterr().out


def test_a_reader_that_ends_early_is_no_mistake() -> None:
    for arguments in (["pretrain", "--help"], ["methods"]):
        code = "import sys; from glf.cli import main; main(sys.argv[1:])"
        first = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert first.stdout is not None
        assert first.stderr is not None
        first.stdout.close()  # nobody reads
        with first.stderr as errors:
            assert errors.read() == ""
        assert first.wait(60) == 141


def test_a_result_with_two_evaluations_still_fits(tmp_path: Path) -> None:
    """What glf writes itself passes its own check."""
    run = a_run(tmp_path / "run")
    assert update_result(run, kind="pretrain")["kind"] == "pretrain"
