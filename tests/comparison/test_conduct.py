"""glf compare on real runs: pairs, tables, restarts, kills and failures."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from forked import Forked
from glf.cli import main
from glf.comparison import processes
from glf.comparison.conduct import compare, online_probe
from glf.comparison.study import from_flags
from glf.comparison.worker import work
from glf.config.base import to_dict
from glf.config.evaluation import CompareConfig
from glf.rundir import Stopped
from glf.train.run import pretrain

QUICK = {"batch_size": "32", "epochs": "1", "val_images": "0", "image_size": "16"}


def small(images: str, out: Path, **values: Any) -> CompareConfig:
    base = CompareConfig(
        methods=("simclr",), constrain=("none", "adc"), data=(images,), seeds=2, settings=QUICK, out=out
    )
    return replace(base, **values)


def command(images: str, out: Path, *constrain: str) -> list[str]:
    """A comparison of one seed as a process."""
    settings = [part for item in QUICK.items() for part in item]
    asked = [f"--data={images}", "--methods", "simclr", "--constrain", *constrain, "--seeds", "1", "--jobs", "1"]
    asked += ["--settings", *settings, "--out", str(out)]
    return [sys.executable, "-c", "from glf.cli import main; main()", "compare", *asked]


def wait_for(condition: Callable[[], object], process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, "it ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def times(out: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in out.rglob("result.json")}


@pytest.mark.usefixtures("quick_workers")
def test_a_comparison_is_paired_stored_and_not_done_twice(few_images: str, tmp_path: Path, console: Console) -> None:
    out = tmp_path / "out"
    content = compare(small(few_images, out), console)
    assert [(run["variant"], run["seed"]) for run in content["runs"]] == [
        ("none", 0), ("adc", 0), ("none", 1), ("adc", 1),
    ]  # fmt: skip
    assert content["references"].keys() == {few_images}
    assert content == json.loads((out / "compare.json").read_text())
    table = (out / "table.md").read_text()
    row = next(line for line in table.splitlines() if line.startswith("| simclr"))
    mean = sum(run["values"]["linear"] for run in content["runs"] if run["variant"] == "none") / 2
    assert row.startswith(f"| simclr | {100 * mean:.1f} ± ")
    assert "(pixels)" in table
    assert "Differences, paired by seed" in (out / "report.html").read_text()
    maps = [path.parts[-4:-2] for path in sorted(out.rglob("map.webp"))]
    assert maps == [("adc", "0"), ("none", "0")]  # of one seed
    saved = json.loads((out / "few" / "simclr" / "adc" / "1" / "result.json").read_text())
    assert saved["command"].startswith("glf pretrain")
    assert "--method simclr+adc" in saved["command"]
    assert saved["evaluation"]["command"].startswith("glf evaluate")
    before = times(out)
    again = compare(small(few_images, out), console)
    assert times(out) == before
    assert again["runs"] == content["runs"]
    elsewhere = compare(small(few_images, tmp_path / "other", seeds=1, constrain=("adc",)), console)
    assert elsewhere["runs"][0]["values"] == content["runs"][1]["values"]


def test_runs_of_a_pair_share_weights_batches_and_views(few_images: str, tmp_path: Path, console: Console) -> None:
    """With a learning rate of zero, only initial weights and batch statistics of the views are left."""
    study = from_flags(small(few_images, tmp_path, settings={**QUICK, "lr": "0.0", "weight_decay": "0.0"}))
    weights = {}
    for cell in study.cells():
        run = tmp_path / cell.path
        pretrain(replace(study.config(cell), out=run), console)
        weights[cell.variant, cell.seed] = load_file(run / "backbone.safetensors")

    def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())

    assert same(weights["none", 0], weights["adc", 0])
    assert same(weights["none", 1], weights["adc", 1])
    assert not same(weights["none", 0], weights["none", 1])
    assert any("running_mean" in name and value.any() for name, value in weights["none", 0].items())


@pytest.mark.usefixtures("quick_workers")
def test_a_failed_run_is_listed_and_the_others_continue(few_images: str, tmp_path: Path, console: Console) -> None:
    out, study = tmp_path / "out", tmp_path / "study.toml"
    study.write_text(
        f"""
        title = "Too large"
        methods = ["simclr"]
        data = ["{few_images}"]
        seeds = 1
        base = "fits"
        settings = {{ epochs = 1, val_images = 0, image_size = 16 }}
        [variants]
        fits = {{ batch_size = 32 }}
        large = {{ batch_size = 4096 }}
        [scales.tiny]
        """
    )
    with pytest.raises(ValueError, match="1 runs failed"):
        compare(CompareConfig(study=study, out=out), console)
    table = (out / "table.md").read_text()
    assert "- failed: few/simclr/large/0: glf: " in table
    assert "4096" in table
    assert len(json.loads((out / "compare.json").read_text())["runs"]) == 1


def test_runs_with_other_settings_are_refused(few_images: str, tmp_path: Path, console: Console) -> None:
    out = tmp_path / "out"
    config = small(few_images, out, constrain=("none",), seeds=1)
    study = from_flags(config)
    (cell,) = study.cells()
    pretrain(replace(study.config(cell), out=out / cell.path), console)
    with pytest.raises(ValueError, match="was trained with epochs 1, but the study says 2: choose another --out"):
        compare(replace(config, settings={**QUICK, "epochs": "2"}), console)


@pytest.mark.usefixtures("quick_workers")
def test_one_evaluation_alone_by_the_command_line(
    few_images: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = command(few_images, tmp_path / "out", "none")[3:]
    main([*asked, "--evaluation", "suite", "knn"])
    (run,) = json.loads((tmp_path / "out" / "compare.json").read_text())["runs"]
    assert run["values"].keys() == {"knn5", "knn"}
    assert "few/simclr/none/0  knn5" in capsys.readouterr().out


def test_a_folder_that_is_not_a_run_is_refused_before_any_run_begins(
    few_images: str, tmp_path: Path, console: Console
) -> None:
    notes = tmp_path / "out" / "few" / "simclr" / "none" / "0" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("the only copy of something")
    config = small(few_images, tmp_path / "out", constrain=("none",), seeds=1)
    with pytest.raises(ValueError, match="is not a run directory and is not overwritten: choose another --out"):
        compare(config, console)
    (cell,) = from_flags(config).cells()
    with pytest.raises(ValueError, match="is not a run directory"):  # also if it appears after the check
        work(from_flags(config).config(cell), from_flags(config).evaluate_config(notes.parent))
    assert notes.read_text() == "the only copy of something"


def test_a_killed_comparison_continues_where_it_was(few_images: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = command(few_images, out, "none", "lpm")
    process = subprocess.Popen(asked, stdout=subprocess.DEVNULL)
    first, second = (out / "few" / "simclr" / name / "0" for name in ("none", "lpm"))
    wait_for((second / "config.json").exists, process)  # the first has ended, the second has begun
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = (first / "result.json").stat().st_mtime_ns
    begun = (second / "config.json").stat().st_mtime_ns
    assert not (second / "backbone.safetensors").exists()
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert (first / "result.json").stat().st_mtime_ns == finished
    assert (second / "config.json").stat().st_mtime_ns == begun, "it waits for the process that was left behind"
    assert "few/simclr/lpm/0  knn5" in done.stdout
    assert "failed" not in (out / "table.md").read_text()


def test_sigterm_stops_the_runs_too(few_images: str, tmp_path: Path) -> None:
    asked = command(few_images, tmp_path / "out", "none")
    process = subprocess.Popen(asked, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: list(tmp_path.rglob("config.json")), process)
    process.terminate()
    _, printed = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert printed == "glf: stopped; run the same command again to resume\n"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no process is left


def test_ctrl_c_stops_the_runs_too(few_images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"]))
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(processes, "_start", start)
    study = from_flags(small(few_images, tmp_path))
    with pytest.raises(Stopped, match="run the same command again to resume") as stopped:
        processes.run_all(study, study.cells(), tmp_path, jobs=2, finished=lambda cell, failure: None)
    assert stopped.value.signal == signal.SIGINT
    assert [process.returncode for process in started] == [-signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_processes_with_the_same_run_train_it_once(few_images: str, tmp_path: Path) -> None:
    """The second one waits for the lock, and finds the run finished."""
    study = from_flags(small(few_images, tmp_path, constrain=("none",), seeds=1))
    (cell,) = study.cells()
    run, job = tmp_path / cell.path, tmp_path / "job.json"
    job.write_text(
        json.dumps({"pretrain": to_dict(study.config(cell)), "evaluate": to_dict(study.evaluate_config(run))})
    )
    asked = [sys.executable, "-m", "glf.comparison.worker", str(job)]
    both = [Forked(asked, stdout=subprocess.PIPE) for _ in range(2)]
    printed = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(map(bool, printed)) == [False, True]
    assert (run / "result.json").exists()


def test_runs_share_the_cores_or_the_threads_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    study = from_flags(CompareConfig(settings={**QUICK, "device": "cpu"}))
    monkeypatch.setattr(processes, "cores", lambda: 8)
    for allowed, jobs, threads in (("", 2, "4"), ("16", 2, "4"), ("1", 2, "1"), ("3", 1, "3"), ("", 16, "1")):
        monkeypatch.setenv("OMP_NUM_THREADS", allowed)
        assert processes.environments(study, jobs) == [{"OMP_NUM_THREADS": threads}] * jobs


def test_a_comparison_does_not_import_lightning() -> None:
    """Only the processes of its runs do: importing it takes seconds."""
    code = "import sys, glf.comparison.conduct, glf.comparison.worker; print('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.slow
def test_a_run_on_two_devices_is_trained_and_evaluated_once(few_images: str, tmp_path: Path, console: Console) -> None:
    """Lightning starts the second process with the recorded command."""
    settings = {**QUICK, "devices": "2", "device": "cpu"}
    content = compare(small(few_images, tmp_path, constrain=("none",), seeds=1, settings=settings), console)
    (run,) = content["runs"]
    assert "--devices 2" in run["command"]
    assert run["values"]


def test_the_online_probe_of_a_run_is_stored(tmp_path: Path) -> None:
    lines = [{"step": 5, "loss": 1.0}, {"step": 10, "val/knn": 0.2}, {"step": 40, "val/knn": 0.3, "val/linear": 0.4}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"epoch": 0, **line}) + "\n" for line in lines))
    assert online_probe(tmp_path) == {"curves": {"val/knn": [(0.25, 0.2), (1.0, 0.3)], "val/linear": [(1.0, 0.4)]}}
    (tmp_path / "metrics.jsonl").write_text('{"step": 5, "epoch": 0, "loss": 1.0}\n')
    assert online_probe(tmp_path) == {"curves": {}}
    assert online_probe(tmp_path / "none") == {"curves": {}}
