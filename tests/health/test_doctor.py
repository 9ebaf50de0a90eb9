"""Runs made unhealthy on purpose are named, with the step; healthy runs get no finding; files and exit codes."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader

from glf.checkpoint import load_checkpoint
from glf.cli import main
from glf.config.adc import AdcOptions
from glf.config.training import PretrainConfig
from glf.constrain.contrast import LogPartition
from glf.data.batches import image_loader
from glf.data.sources import load_images
from glf.health.examine import UnhealthyRunError, diagnose, examine, read_metrics, too_short
from glf.health.rules import collapsed_at_end
from glf.measure.batch import NonFiniteTracker
from glf.methods import METHODS
from glf.objective import Objective
from glf.result import read_result
from glf.runfiles import LAST
from glf.terms import Term
from glf.train.run import pretrain
from glf.types import Embeddings, Scalar

Run = Callable[..., Path]
SMALL = {"max_images": 224, "val_images": 32, "batch_size": 32, "log_every": 1}  # six steps an epoch
MANY = {"max_images": 352, "val_images": 32, "batch_size": 16, "log_every": 1, "epochs": 1}  # twenty in one
FEW = {"max_images": 128, "val_images": 32, "batch_size": 16, "log_every": 1}  # six an epoch, of half the images
POINTS = {"polarisation": 1000.0, "near": 0.0, "far": 0.6}

# What is done to a run, the problem it then has, and the steps between which that begins. None: the step depends on the
# processor's rounding, because the run is chaotic; it is checked against the logged metrics instead.
UNHEALTHY: dict[str, tuple[dict[str, Any], str, range | None]] = {
    "nothing keeps images apart": (
        {**SMALL, "method": "align", "lr": 0.3, "epochs": 2},
        "constant collapse",
        range(3, 9),
    ),
    "nothing decorrelates": (
        {**SMALL, "method": "barlow_twins", "options": {"redundancy": 0.0}, "lr": 0.2, "epochs": 6},
        "dimensional collapse",
        None,
    ),
    "no distance but near and far": (
        {**SMALL, "method": "lmcl", "options": POINTS, "lr": 0.05, "epochs": 3},
        "cluster collapse",
        range(4, 15),
    ),
    "huge steps": ({**FEW, "method": "simclr", "lr": 100.0}, "exploding scale", range(2, 3)),
    "rows that are their anchors": (
        {**FEW, "method": "simclr+adc", "adc": AdcOptions(reading="paper")},
        "dead term",
        range(1, 2),
    ),
    "a weight of zero": (
        {**FEW, "method": "simclr+dcm", "adc": AdcOptions(nu=0.0), "epochs": 2},
        "dead term",
        range(1, 2),
    ),
    "a weight of a thousand": (
        {**MANY, "method": "simclr+lpm", "adc": AdcOptions(upsilon=1000.0)},
        "dominating term",
        range(1, 2),
    ),
}


def names(run: Path) -> list[str]:
    return [finding.name for finding in examine(read_metrics(run))]


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("why", UNHEALTHY)
def test_an_unhealthy_run_is_named(why: str, small_run: Run, console: Console) -> None:
    settings, name, steps = UNHEALTHY[why]
    run = small_run(**settings)
    found = {finding.name: finding for finding in examine(read_metrics(run))}
    assert name in found
    at_end = [finding.name for finding in examine(read_metrics(run), ended=True)]
    if steps is not None:
        assert found[name].since in steps
    else:  # the first step of the final, unbroken sequence of steps with an effective rank below 1.3
        ranks = {int(r["step"]): r["z/rank"] for r in read_metrics(run) if "z/rank" in r}
        above = max((step for step, rank in ranks.items() if rank >= 1.3), default=0)
        assert found[name].since == above + 1
        assert len(ranks) - above >= 5
    assert set(found) <= {name, "dead term"}, "nothing else is wrong but a weight that was set to zero for it"
    stored = json.loads((run / "result.json").read_text())["doctor"]
    assert [finding["name"] for finding in stored] == at_end
    assert asdict(next(iter(found.values()))) in stored
    assert f"unhealthy: {at_end[0]} since step" in printed(console)
    assert printed(console).count(f"doctor    {name} since step") == 1, "said once, while training"


@pytest.mark.parametrize("method", ["simclr", "simclr+adc", "byol", "vicreg", "barlow_twins"])
def test_a_healthy_run_gets_no_finding(method: str, small_run: Run, console: Console) -> None:
    run = small_run(**MANY, method=method)
    assert examine(read_metrics(run)) == []
    assert json.loads((run / "result.json").read_text())["doctor"] == []
    assert "healthy: effective rank" in printed(console)
    assert "doctor " not in printed(console)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["simclr", "simclr+adc", "byol", "vicreg", "barlow_twins", "swav", "mec", "pcl"])
def test_a_longer_healthy_run_gets_no_finding(method: str, small_run: Run) -> None:
    run = small_run(method=method, max_images=1_480, val_images=200, batch_size=64, epochs=3, log_every=2)
    assert examine(read_metrics(run)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"method": "align", "lr": 0.02}, "constant collapse"),
        ({"method": "barlow_twins", "options": {"redundancy": 0.0}, "lr": 0.02}, "dimensional collapse"),
        ({"method": "lmcl", "options": POINTS, "lr": 0.02}, "cluster collapse"),
        ({"method": "swav", "lr": 0.01, "options": {"rounds": 0.0}}, "constant collapse"),
        ({"method": "vicreg", "lr": 20.0}, "exploding scale"),
    ],
)
def test_a_longer_unhealthy_run_is_named(settings: dict[str, Any], name: str, small_run: Run) -> None:
    run = small_run(**settings, max_images=1_344, val_images=64, batch_size=64, epochs=3)
    assert name in names(run)


def test_weights_that_are_lost_end_a_run_before_they_are_kept(small_run: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UnhealthyRunError, match=r"stopped at step \d: not finite since step \d; start again with --overwrite"
    ):
        small_run(**SMALL, method="simclr", lr=1e8)
    found = examine(read_metrics(tmp_path / "run"))
    assert found[0].name == "not finite"
    assert 3 <= found[0].since <= 6
    assert "first z, the network's output" in found[0].evidence
    assert not (tmp_path / "run" / LAST).exists()
    assert not (tmp_path / "run" / "result.json").exists()


def test_lost_weights_are_found_between_logged_steps_with_their_step(small_run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnhealthyRunError, match="not finite"):
        small_run(**{**SMALL, "log_every": 1000}, method="simclr", lr=1e8)
    records = read_metrics(tmp_path / "run")
    assert [record["step"] for record in records if "loss" in record] == [1]
    assert 3 <= examine(records)[0].since <= 6


class Enlarge(L.Callback):
    """Weights that are finite, and so large that features are not, as after a step with a learning rate of 1000."""

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        with torch.no_grad():
            for value in module.parameters():
                value.fill_(1e30)


def test_features_that_overflow_end_a_run_as_unhealthy(
    few_images: str, tmp_path: Path, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in one step, of which the loss is not logged: only the online probe sees it."""
    config = PretrainConfig(
        data=few_images, max_images=96, val_images=32, batch_size=64, epochs=1, device="cpu", out=tmp_path / "run"
    )
    with pytest.raises(UnhealthyRunError, match=r"stopped at step 1: .* not finite: .*; start again with --overwrite"):
        pretrain(config, console, callbacks=[Enlarge()])
    with pytest.raises(SystemExit) as end:
        main(["doctor", str(tmp_path / "run")])
    assert end.value.code == 1
    shown = capsys.readouterr().out
    assert "not finite since step 1" in shown
    assert "first the encoder's features" in shown
    assert not (tmp_path / "run" / LAST).exists()


def test_lost_weights_are_not_saved_in_the_middle_of_an_epoch(small_run: Run, tmp_path: Path) -> None:
    """Saved after every step, and the doctor would come at the thousandth."""
    with pytest.raises(UnhealthyRunError, match="not finite"):
        small_run(**{**SMALL, "log_every": 1000}, method="simclr", lr=1e8, save_minutes=0.0)
    saved = load_checkpoint(tmp_path / "run" / LAST)
    assert saved["global_step"] >= 1
    assert all(value.isfinite().all() for value in saved["state_dict"].values() if isinstance(value, torch.Tensor))


def test_the_term_that_was_first_not_finite_is_named(small_run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnhealthyRunError, match="since step 1;"):
        small_run(**SMALL, method="simclr", options={"temperature": 1e-39})
    assert (
        examine(read_metrics(tmp_path / "run"))[0].evidence == "first align/cosine and constrain/log_partition, at once"
    )


class Rooted(Term):
    """Finite, with a gradient that is not: the root of a sum of squares that is zero."""

    name, role, formula = "rooted", "align", "|z - sg z|"

    def forward(self, e: Embeddings) -> Scalar:
        return (e.z - e.z.detach()).pow(2).sum().sqrt()


class Blind(Term):
    """A value without gradient."""

    name, role, formula = "blind", "align", "|sg z|"

    def forward(self, e: Embeddings) -> Scalar:
        return e.z.detach().norm(dim=-1).mean()


def with_term(term: type[Term], monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a method that aligns by this term."""
    row = replace(METHODS["simclr"], name="odd", options={}, objective=lambda: Objective(term(), LogPartition()))
    monkeypatch.setitem(METHODS, "odd", row)
    return "odd"


def test_a_gradient_that_is_not_finite_is_named_with_its_term(
    small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnhealthyRunError, match="not finite since step 1"):
        small_run(**SMALL, method=with_term(Rooted, monkeypatch))
    evidence = examine(read_metrics(tmp_path / "run"))[0].evidence
    assert evidence == "first the gradient at z, while every term was finite: that of align/rooted"


def test_a_term_whose_input_is_detached_is_dead(small_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(**FEW, method=with_term(Blind, monkeypatch))
    (finding,) = examine(read_metrics(run))
    assert (finding.name, finding.since) == ("dead term", 1)
    assert finding.evidence == "no gradient at z from align/blind"


def test_terms_in_their_warm_up_are_inactive_and_not_dead(small_run: Run) -> None:
    run = small_run(**FEW, method="pcl", epochs=2, options={"clusters": 4, "warmup": 2, "queue": 64})
    steps = [record for record in read_metrics(run) if "loss" in record]
    assert len(steps) == 12
    assert all("constrain/cluster_partition" in r and "share/constrain/cluster_partition" not in r for r in steps)
    assert examine(read_metrics(run)) == []


def slow(*arguments: Any, **settings: Any) -> DataLoader[Any]:
    """A loader that takes as long for a batch as the last step took: half of the time is spent waiting."""
    made = image_loader(*arguments, **settings)
    collate, handed = made.collate_fn, time.perf_counter()

    def collate_slowly(rows: Any) -> Any:
        nonlocal handed
        time.sleep(time.perf_counter() - handed)
        batch = collate(rows)
        handed = time.perf_counter()
        return batch

    made.collate_fn = collate_slowly
    return made


def test_a_starved_run_is_named(small_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glf.train.inputs.image_loader", slow)
    (finding,) = examine(read_metrics(small_run(**{**MANY, "max_images": 192}, method="simclr")))
    assert finding.name == "data starvation"
    assert finding.since <= 6
    assert "--workers" in finding.advice


class Slow(L.Callback):
    """Takes its time after every step, as the writing of a large checkpoint does."""

    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(0.2)


def test_what_follows_a_step_is_no_data_wait(tmp_path: Path, console: Console) -> None:
    config = PretrainConfig(**{**MANY, "max_images": 192}, method="simclr", out=tmp_path / "run")
    pretrain(config, console, callbacks=[Slow()])
    waited = [record["data_wait"] for record in read_metrics(tmp_path / "run") if "data_wait" in record]
    assert len(waited) == 10
    assert max(waited[1:]) < 0.3


def late_start(*arguments: Any, **settings: Any) -> DataLoader[Any]:
    """A loader whose first batch takes four seconds, as that of many workers, or of a stream, may."""
    made = image_loader(*arguments, **settings)
    collate, seconds = made.collate_fn, [4.0]

    def collate_late(rows: Any) -> Any:
        time.sleep(seconds.pop() if seconds else 0.0)
        return collate(rows)

    made.collate_fn = collate_late
    return made


def test_a_slow_start_is_no_starvation(small_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glf.train.inputs.image_loader", late_start)
    records = read_metrics(small_run(**{**MANY, "max_images": 192}, method="simclr"))
    assert next(record["data_wait"] for record in records if "data_wait" in record) > 0.3
    assert examine(records) == []


ARGUMENTS = "--max-images 96 --val-images 32 --batch-size 16 --log-every 1 --epochs 3"  # four steps an epoch


def ended(*arguments: str) -> object:
    try:
        main(list(arguments))
    except SystemExit as end:
        return end.code
    return 0


def test_stop_on_problem_and_how_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    unhealthy = ["pretrain", "--method", "simclr+adc", "--reading", "paper", "--out", str(run), *ARGUMENTS.split()]
    assert ended(*unhealthy, "--stop-on-problem") == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped at step 5: dead term since step 1; start again with --overwrite" in said
    assert f"or continue from the last checkpoint with glf pretrain --resume --out {run}" in said
    assert load_checkpoint(run / LAST)["global_step"] == 4
    assert not (run / "result.json").exists()
    assert ended("doctor", str(run)) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("dead term since step 1 seen no gradient at z from constrain/lpm why a weight")
    assert said.endswith("unhealthy (5 logged steps up to step 5, not finished)")
    main(["pretrain", "--out", str(run), "--resume"])  # without the flag it continues
    assert "unhealthy: dead term since step 1" in capsys.readouterr().out
    assert ended("doctor", str(run)) == 1
    assert "unhealthy (12 logged steps up to step 12, finished)" in capsys.readouterr().out


def write(run: Path, text: str) -> Path:
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_text(text)
    return run


def test_doctor_reads_what_a_killed_run_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = '{"step": 1, "epoch": 0, "loss": 1.0, "align/cosine": 1.0, "z/spread": 0.5}\n'
    run = write(tmp_path / "run", line + '{"step": 2, "epoch": 0, "lo')
    assert ended("doctor", str(run)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said == "too short to tell (1 logged steps up to step 1, not finished; problems show after 5)"
    assert diagnose(write(run, ""))[1].startswith("too short to tell (nothing logged yet")
    assert ended("doctor", str(tmp_path / "no")) == 2
    assert "no metrics.jsonl in" in capsys.readouterr().err


def test_a_short_run_is_never_healthy(small_run: Run, console: Console) -> None:
    """Too few logged steps for a rule with patience: nothing is claimed."""
    run = small_run(**{**SMALL, "log_every": 4, "epochs": 2}, method="simclr")
    assert "\ntoo short to tell whether it is healthy: effective rank" in printed(console)
    assert diagnose(run)[1].startswith("too short to tell (3 logged steps")
    assert "doctor" not in read_result(run)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"z/spread": 0.01, "val/spread": 0.0099}, ["constant collapse"]),
        ({"z/rank": 1.1, "val/rank": 1.16}, ["dimensional collapse"]),
        ({"val/spread": 0.0154, "val/rank": 1.05}, ["constant collapse"]),  # whatever a batch looks like
        ({"z/spread": 0.01}, []),  # a batch may look like anything
        ({"val/spread": 0.01}, []),  # running statistics that have not settled
    ],
)
def test_the_last_state_of_a_short_run_is_examined(changes: dict[str, float], names: list[str]) -> None:
    last = {"loss": 1.0, "z/spread": 0.5, "z/rank": 6.0, "val/spread": 0.5, "val/rank": 6.0, "val/full_rank": 20.0}
    records = [{"step": 10, "epoch": 0, **last, **changes}]
    assert [finding.name for finding in examine(records, ended=True)] == names
    assert examine(records) == []
    assert too_short(records)
    many = [{**steps(1)[0], "step": step} for step in range(1, 30)]  # before the features have settled
    assert [finding.name for finding in examine([*many, {**records[0], "step": 30}], ended=True)] == names


def test_copies_of_one_image_are_not_healthy(tmp_path: Path, small_run: Run, console: Console) -> None:
    pixels = np.repeat(load_images("fashion-mini").pixels[:1], 40, axis=0)
    np.save(tmp_path / "copies.npy", pixels)
    run = small_run(data=str(tmp_path / "copies.npy"), max_images=None, batch_size=20, val_images=0, epochs=6)
    assert "unhealthy: constant collapse since step 12" in printed(console)
    assert diagnose(run)[1].startswith("unhealthy (12 logged steps")


def test_a_run_that_ends_with_a_problem_is_not_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    settings = "--max-images 96 --batch-size 32 --val-images 0 --epochs 2 --no-auto --lr 1000 --stop-on-problem"
    assert ended("pretrain", "--method", "simclr", "--out", str(run), *settings.split()) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "ended with a problem: constant collapse since step 6; start again with --overwrite" in said
    assert read_result(run)["doctor"][0]["name"] == "constant collapse"


# What follows is about records alone.


def steps(count: int = 12, epochs: int = 1, **series: Callable[[int], float] | float) -> list[dict[str, float]]:
    """Records of a healthy run of two terms, but for what is given: a number, or a function of the step."""
    healthy: dict[str, Any] = {
        "loss": 1.0, "align/a": 0.5, "constrain/b": 0.5, "share/align/a": 0.6, "share/constrain/b": 0.4,
        "z/scale": 0.4, "z/spread": 0.8, "z/rank": 6.0, "z/twins": 0.0, "z/between": 0.02,
        "data_wait": 0.01, "images_per_second": 100.0,
    }  # fmt: skip
    found = []
    for step in range(1, count + 1):
        values = {k: v(step) if callable(v) else v for k, v in {**healthy, **series}.items()}
        found.append({"step": step, "epoch": (step - 1) * epochs // count, **values})
    return found


def late(unhealthy: float, healthy: float) -> Callable[[int], float]:
    """Healthy up to step 5, unhealthy from step 6 on."""
    return lambda step: healthy if step < 6 else unhealthy


@pytest.mark.parametrize(
    ("series", "name"),
    [
        ({"z/spread": late(0.04, 0.06)}, "constant collapse"),
        ({"z/rank": late(1.2, 1.4)}, "dimensional collapse"),
        ({"z/twins": late(0.9, 0.7)}, "cluster collapse"),
        ({"z/twins": 0.9, "z/between": late(0.1, 0.2)}, "cluster collapse"),
        ({"prototypes/used": late(0.1, 0.3)}, "cluster collapse"),
        ({"z/scale": late(41.0, 0.4)}, "exploding scale"),
        ({"z/scale": late(0.0039, 0.4)}, "vanishing scale"),
        ({"share/constrain/b": late(0.0, 0.4)}, "dead term"),
        ({"data_wait": late(0.4, 0.2)}, "data starvation"),
    ],
)
def test_each_symptom_from_its_first_step_and_after_patience(series: dict[str, Any], name: str) -> None:
    assert [(f.name, f.since) for f in examine(steps(10, **series))] == [(name, 6)]
    assert examine(steps(9, **series)) == [], "four in a row may be chance"
    recovered = [*steps(10, **series), {**steps(1)[0], "step": 11, "prototypes/used": 0.5}]
    assert examine(recovered) == [], "a problem that has passed is none"


def test_every_finding_has_all_its_parts_and_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    from glf.health.rules import ADVICE

    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    flags = {word.rstrip(",;:.)") for word in capsys.readouterr().out.split() if word.startswith("--")}
    for why, advice in ADVICE.values():
        assert why
        asked = {word.strip("(,;:.)") for word in advice.split() if word.lstrip("(").startswith("--")}
        assert asked
        assert asked <= flags


def test_a_dominating_term_is_named_after_long_and_only_beside_live_ones() -> None:
    shares = {"share/align/a": 0.999, "share/constrain/b": 0.001}
    assert examine(steps(19, **shares)) == []
    (finding,) = examine(steps(20, **shares))
    assert (finding.name, finding.since) == ("dominating term", 1)
    assert "align/a has 99.9%" in finding.evidence
    alone = [{k: v for k, v in r.items() if "constrain" not in k} | {"share/align/a": 1.0} for r in steps(30)]
    assert examine(alone) == [], "a method of one term"
    dead = examine(steps(30, **{"share/align/a": 1.0, "share/constrain/b": 0.0}))
    assert [f.name for f in dead] == ["dead term"], "it dominates nothing that lives"


def test_a_hinge_that_is_satisfied_is_not_dead_but_one_that_never_acted_is() -> None:
    satisfied = {"share/constrain/b": late(0.0, 0.4), "constrain/b": late(0.0, 0.5)}
    assert examine(steps(12, epochs=3, **satisfied)) == []
    never = {"share/constrain/b": 0.0, "constrain/b": 0.0}
    assert examine(steps(12, **never)) == [], "not before the second epoch"
    assert [f.name for f in examine(steps(12, epochs=2, **never))] == ["dead term"]


def test_classes_that_are_points_are_no_collapse_where_labels_teach() -> None:
    points = steps(12, **{"z/twins": 1.0, "z/between": 0.0})
    assert [f.name for f in examine(points)] == ["cluster collapse"]
    taught = [{k.replace("align/a", "align/same_class"): v for k, v in r.items()} for r in points]
    assert examine(taught) == []


def probe(step: int, rank: float, full: float, spread: float = 0.5) -> dict[str, float]:
    return {"step": step, "epoch": step, "val/rank": rank, "val/full_rank": full, "val/spread": spread}


def test_features_are_judged_by_the_probe_at_once() -> None:
    assert [f.name for f in examine([probe(60, 20, 60), probe(70, 20, 60, spread=0.01)])] == ["constant collapse"]
    assert examine([probe(49, 20, 60, spread=0.01)]) == [], "statistics of the first steps say nothing"
    assert examine([probe(60, 8.0, 450)]) == []
    assert [f.name for f in examine([probe(60, 8.0, 1_200)])] == ["dimensional collapse"], "beside 1,200"
    fallen = [probe(60, 40.0, 60), probe(70, 4.1, 60)]
    assert examine(fallen) == []
    (finding,) = examine([*fallen, probe(80, 3.9, 60)])
    assert (finding.name, finding.since) == ("dimensional collapse", 80)


def test_the_first_that_was_not_finite_is_named_and_nothing_after_it_judged() -> None:
    nan = float("nan")
    logged = steps(12, **{"loss": late(nan, 1.0), "constrain/b": late(nan, 0.5), "z/spread": late(nan, 0.8)})
    (finding,) = examine(logged)  # a file without notes: what was logged has to do
    assert (finding.name, finding.since, finding.evidence) == ("not finite", 6, "first constrain/b")
    sparse = [*logged[:2], *logged[8:]]  # steps 1, 2 and from 9 on
    note = {"step": 9, "epoch": 0, "bad/z": 7, "bad/align/a": 7, "bad/constrain/b": 6, "bad/gradient": 6}
    (finding,) = examine([*sparse, note])
    assert (finding.since, finding.evidence) == (6, "first constrain/b")
    (finding,) = examine([*sparse, {**note, "bad/align/a": 6}])
    assert (finding.since, finding.evidence) == (6, "first align/a and constrain/b, at once")
    (finding,) = examine([*sparse, {**note, "bad/z": 6}])
    assert (finding.since, finding.evidence[:7]) == (6, "first z")
    (finding,) = examine([*sparse, {**note, "bad/align/a": 1}])
    assert finding.since == 6, "what happened at step 1 was got over"
    (finding,) = examine([*steps(3), {"step": 3, "epoch": 0, "bad/weights": 3}])
    assert "by the update of that step" in finding.evidence


def test_a_step_that_was_skipped_is_no_problem() -> None:
    """Mixed precision leaves out a step that overflows, and goes on."""
    note = {"step": 4, "epoch": 0, "bad/align/a": 4}
    records = steps(8)
    assert examine([*records[:3], note, *records[4:]]) == []


def test_the_tracker_keeps_the_first_and_large_numbers_are_fine() -> None:
    bad = NonFiniteTracker()
    for step in range(1, 6):
        half = torch.full((3, 4), 60_000.0, dtype=torch.float16)  # their sum would overflow
        inf = torch.tensor(torch.inf if step == 3 else 1.0)
        bad.note(step, {"z": half, "term": inf})
        bad.note(step, {"gradient": torch.tensor([0.0, torch.nan if step >= 4 else 1.0])})
    assert bad.steps() == {"term": 3, "gradient": 4}


def test_batches_without_a_rank_are_examined_too() -> None:
    """A batch of three images has a spread and no rank."""
    records = [{"step": 1, "epoch": 0, "loss": 1.0, "z/spread": 0.5}]
    records.append({"step": 2, "epoch": 0, "val/spread": 0.5, "val/rank": 1.0})
    assert not collapsed_at_end(records)
    records[-1]["val/spread"] = 0.01
    assert [finding.name for finding in collapsed_at_end(records)] == ["constant collapse"]
