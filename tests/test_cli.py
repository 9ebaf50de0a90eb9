"""The command line as a person meets it: real processes, real messages."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import forked
from glf.cli import main, parse_config
from glf.commands import COMMANDS
from glf.config.adc import AdcOptions
from glf.config.help_groups import ADAPT_GROUPS, PRETRAIN_GROUPS, Group
from glf.config.training import PretrainConfig
from glf.methods import METHODS

GLF = [sys.executable, "-c", "from glf.cli import main; main()"]


def glf(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment}
    return subprocess.run([*GLF, *arguments], capture_output=True, text=True, env=env, timeout=120)


def quick_glf(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same, without the time to import torch."""
    return forked.run([*GLF, *arguments], env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment})


def test_help_names_every_command_and_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("pretrain", "evaluate", "report", "doctor", "methods"))
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    shown = capsys.readouterr().out
    flags = (
        "--nu --upsilon --rho --effective-dim --reading --t-scale --prior --seed --resume --dry-run --keep --weights"
    )
    assert all(flag in shown for flag in flags.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_that_it_takes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for example in COMMANDS[command].examples:
        assert example in shown
        program, name, *arguments = shlex.split(example)
        assert (program, name) == ("glf", command)
        assert isinstance(parse_config(name, arguments), COMMANDS[command].config)


def test_the_list_of_commands_is_complete_and_has_no_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert re.search(r"\{([\w,]+)\}", shown)[1].split(",") == list(COMMANDS)  # type: ignore[index]
    assert "Examples" not in shown


@pytest.mark.parametrize(("command", "groups"), [("pretrain", PRETRAIN_GROUPS), ("adapt", ADAPT_GROUPS)])
def test_every_option_is_in_one_group_with_a_purpose(
    command: str, groups: dict[str, Group], capsys: pytest.CaptureFixture[str]
) -> None:
    config = COMMANDS[command].config
    suppressed = {one.name for one in fields(config) if "Suppress" in str(one.type)}
    grouped = [name for _, names in groups.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) | suppressed == {one.name for one in fields(config)}
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    places = [shown.index(f" {title} options ") for title in groups]
    assert places == sorted(places)
    for purpose, names in groups.values():
        assert purpose in shown
        hidden = {"adc", "encoder"} | suppressed  # adc is a group itself, and the encoder has no flag
        assert all(f"--{name.replace('_', '-')} " in shown.replace(",", " ") for name in names if name not in hidden)
    assert "None" not in shown, "not given is not a value"


def test_options_of_groups_end_in_one_config() -> None:
    arguments = ["--data", "x", "--nu", "3", "--projector", "8", "4", "--options", "temperature", "0.2", "--no-auto"]
    options = {"temperature": 0.2}
    expected = PretrainConfig(data="x", adc=AdcOptions(nu=3), projector=(8, 4), options=options, auto=False)
    assert parse_config("pretrain", arguments) == expected
    found = parse_config("evaluate", ["runs/a", "--fractions", "0.5", "--detect-size", "64"])
    assert (found.run, found.finetune.fractions, found.detect.detect_size) == (Path("runs/a"), (0.5,), 64)
    assert parse_config("adapt", ["timm:resnet18"]).encoder == "timm:resnet18"


def test_without_a_command_the_list_of_commands_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)
    steps = re.findall(r"^  (\d)\. glf (\w+)", shown, re.MULTILINE)
    assert steps == [("1", "adapt"), ("2", "evaluate"), ("3", "report"), ("4", "export")]


def test_methods_shows_both_parts_and_the_paper_of_every_row() -> None:
    shown = glf("methods").stdout
    rows = {
        cells[0]: cells[1:]
        for line in shown.splitlines()
        if len(cells := re.findall(r"│ (\S[^│]*?|) *(?=│)", line)) == 4
    }
    assert METHODS.keys() <= rows.keys()
    assert rows["vicreg"][:2] == ["25 mse", "25 variance + 2 covariance"]
    assert rows["byol"] == ["2 predict_teacher", "architecture", "Grill et al. 2020"]
    assert rows["swav"][1] == "prototype_partition (transform, architecture)"
    assert rows["align"][1] == "none"
    assert "dcm: KL(P_Gaussian || P_t) of neighbours" in shown
    of_one = glf("methods", "barlow_twins").stdout
    for words in ("Zbontar", "standardisation of each view", "sum_{i != j} C_ij^2", "redundancy 0.0051"):
        assert words in of_one, words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretrain --method simlcr", "unknown method 'simlcr' - did you mean 'simclr'?"),
        ("pretrain --data no/such/folder", "no such file or folder"),
        ("pretrain --data cifra10", "did you mean 'cifar10'?"),
        ("pretrain --data cifar10 --root .", "--download"),
        ("evaluate no/such/run", "no backbone at"),
        ("report no/such/run", "no run below"),
        ("doctor no/such/run", "no metrics.jsonl in"),
        ("embed no/such/run .", "no backbone at"),
        ("embed pixels no/such/folder", "no such file or folder"),
        ("embed pixels . --out e.xlsx", "should end with one of .npy, .csv, .parquet"),
        ("search pixels query.jpg", "search needs queries and a folder"),
        ("export no/such/run", "is no/such/run the directory of a finished run"),
        ("pretrain --resume --out no/such/run", "no config.json in"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_two(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = quick_glf(*arguments.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("glf: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretrain --epochs 0", "epochs must be at least 1, got 0"),
        ("pretrain --batch-size 1", "batch_size must be at least 2, got 1"),
        ("pretrain --lr -1", "lr must be at least 0, got -1.0"),
        ("pretrain --lr nan", "lr must be at least 0, got nan"),
        ("pretrain --lars-eta 0", "lars_eta must be above 0, got 0.0"),
        ("evaluate run --knn-k 0", "knn_k must be at least 1, got 0"),
        ("evaluate run --probe-lrs 0.1 -1", "probe_lrs must be above 0"),
        ("evaluate run --finetune-epochs 0", "finetune_epochs must be at least 1"),
        ("compare --seeds 0", "seeds must be at least 1, got 0"),
        ("shard photos --per-shard 0", "per_shard must be at least 1, got 0"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused_at_once(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert message in " ".join((shown.out + shown.err).replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in quick_glf("evaluate", "no/such/run", GLF_DEBUG="1").stderr


def test_an_unknown_flag_names_the_nearest() -> None:
    done = glf("pretrain", "--epoch", "3")
    assert done.returncode == 2
    assert "--epochs" in done.stdout + done.stderr


def test_from_images_to_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glf.data.sources import load_images

    train, test = load_images("fashion-mini"), load_images("fashion-mini", "test")
    np.savez(
        tmp_path / "small.npz",
        train_images=train.pixels[:300], train_labels=train.targets[:300],
        test_images=test.pixels[:100], test_labels=test.targets[:100],
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    done = glf(*"pretrain --data small.npz --method byol+adc --nu 0.1 --epochs 1 --batch-size 64 --out r".split())
    assert done.returncode == 0, done.stderr
    assert "0.02 dcm + 0.2 lpm" in done.stdout  # nu and upsilon times the scale of byol
    assert json.loads((tmp_path / "r" / "result.json").read_text())["command"] == "(called from Python)"
    done = quick_glf("evaluate", "r", "--probe-epochs", "5")
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in ("pixels", "untrained", "trained", "linear probe (SGD, 5 epochs)"))
    done = quick_glf("report", "r", "--out", "page.html")
    assert done.returncode == 0, done.stderr
    assert "linear probe" in (tmp_path / "page.html").read_text()
    again = quick_glf(*"pretrain --data small.npz --out r".split())
    assert again.returncode == 2
    assert "r already exists" in again.stderr


def test_a_closed_pipe_is_no_mistake() -> None:
    command = f"{shlex.join(GLF)} pretrain --help | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("usage: glf pretrain")
    assert done.stderr == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_leads_nowhere(closed: str) -> None:
    command = f"{shlex.join(GLF)} methods simclr {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("simclr" in done.stdout) == (" >&-" not in f" {closed}")


def test_python_m_glf_is_glf(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "glf", "methods", "simclrr"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'simclr'" in done.stderr
