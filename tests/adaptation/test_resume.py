"""An adaptation that is stopped or killed at any place and resumed ends as one that was left alone."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from glf import rundir
from glf.adaptation import activations, choose
from glf.adaptation import run as adaptation
from glf.adaptation.run import SameEncoder, adapt
from glf.checkpoint import load_checkpoint
from glf.config.training import AdaptConfig
from glf.runfiles import BACKBONE, LAST


class Killed(BaseException):
    """The end of the process, as far as a test in one process can have it."""


class EndAtStep(L.Callback):
    """Ends the run after a step."""

    def __init__(self, step: int, how: Callable[[], Any]) -> None:
        self.step, self.how = step, how

    def on_train_batch_end(self, trainer: L.Trainer, *arguments: Any) -> None:
        if trainer.global_step == self.step:
            self.how()


def kill() -> None:
    raise Killed


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def outcome(run: Path) -> dict[str, Any]:
    """Everything that must not depend on a kill."""
    result = json.loads((run / "result.json").read_text())
    times = ("images_per_second", "data_wait")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": load_file(run / BACKBONE),
        "state": load_checkpoint(run / LAST)["state_dict"],
        "adaptation": result["adaptation"],
        "metrics": [{name: value for name, value in line.items() if name not in times} for line in lines],
    }


def assert_same(one: Path, other: Path) -> None:
    first, second = outcome(one), outcome(other)
    for name in ("weights", "state"):
        assert first[name].keys() == second[name].keys()
        assert all(torch.equal(first[name][key], second[name][key]) for key in first[name])
    assert first["adaptation"] == second["adaptation"]
    assert first["metrics"] == second["metrics"]


def resume(run: Path, console: Console) -> None:
    adapt(AdaptConfig(resume=True, out=run), console)


@pytest.mark.parametrize(
    ("how", "changes", "error"),
    [
        (terminate, {"method": "byol+lpm"}, rundir.Stopped),
        (terminate, {"views": 0, "train": "norms"}, rundir.Stopped),
        (kill, {"norms": "data"}, Killed),
    ],
    ids=["SIGTERM", "SIGTERM with a live trunk", "kill"],
)
def test_stopped_in_the_middle_of_an_epoch(
    how: Callable[[], None],
    changes: dict[str, Any],
    error: type[BaseException],
    settings: AdaptConfig,
    tmp_path: Path,
    console: Console,
) -> None:
    whole, stopped = (replace(settings, **changes, out=tmp_path / name) for name in ("whole", "stopped"))
    adapt(whole, console)
    with pytest.raises(error):
        adapt(replace(stopped, save_minutes=0), console, [EndAtStep(4, how)])
    assert not (tmp_path / "stopped" / "result.json").exists()
    saved = load_checkpoint(tmp_path / "stopped" / LAST)["global_step"]
    assert saved % 3, f"step {saved} is the end of an epoch"
    resume(tmp_path / "stopped", console)
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_a_stopped_run_says_how_to_go_on(settings: AdaptConfig, console: Console) -> None:
    with pytest.raises(rundir.Stopped, match=f"continue with: glf adapt --resume --out {settings.out}"):
        adapt(settings, console, [EndAtStep(2, terminate)])


def test_killed_while_the_trunk_runs(
    settings: AdaptConfig, whole: Path, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = settings.out
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    seeds, make, kills = [], activations.batch_views, [Killed]

    def views(*arguments: Any, seed: tuple[int, ...], **options: Any) -> Any:
        seeds.append(seed)
        if seed == (0, 64) and kills:
            raise kills.pop()
        return make(*arguments, seed=seed, **options)

    monkeypatch.setattr(activations, "batch_views", views)
    with pytest.raises(Killed):
        adapt(settings, console)
    assert not (run / LAST).exists()
    seeds.clear()
    resume(run, console)
    assert (0, 64) in seeds
    assert (0, 0) not in seeds, "the first batch is not computed again"
    assert_same(whole, run)


def test_killed_while_the_weights_are_compared(
    settings: AdaptConfig, whole: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = settings.out
    measure, calls = choose.neighbours_kept, []

    def third_call_ends(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise Killed
        return measure(*arguments)

    monkeypatch.setattr(choose, "neighbours_kept", third_call_ends)
    with pytest.raises(Killed):
        adapt(settings, console)
    assert not (run / BACKBONE).exists()
    resume(run, console)
    assert len(calls) == 3 + len(choose.SHARES)
    assert_same(whole, run)


def test_killed_before_the_backbone_is_written(
    settings: AdaptConfig, whole: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptation, "save", lambda *arguments, **more: kill())
    with pytest.raises(Killed):
        adapt(settings, console)
    monkeypatch.undo()
    resume(settings.out, console)
    assert_same(whole, settings.out)


def test_what_was_learnt_cannot_be_changed_on_resume(settings: AdaptConfig, console: Console) -> None:
    with pytest.raises(Killed):
        adapt(replace(settings, save_minutes=0), console, [EndAtStep(2, kill)])
    with pytest.raises(ValueError, match=r"l2sp was 0.0 when .* was started; it cannot become 1.0 on resume"):
        adapt(AdaptConfig(resume=True, out=settings.out, l2sp=1.0), console)
    with pytest.raises(ValueError, match=r"encoder was 'run:.*' when .* was started; it cannot become"):
        adapt(AdaptConfig(resume=True, out=settings.out, encoder="timm:resnet18"), console)


def test_a_run_is_not_resumed_with_another_encoder() -> None:
    SameEncoder("a").load_state_dict(SameEncoder("a").state_dict())
    with pytest.raises(ValueError, match="the encoder's weights differ"):
        SameEncoder("a").load_state_dict(SameEncoder("b").state_dict())
