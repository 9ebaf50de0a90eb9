"""Whole runs on shards: from glf shard to a backbone, with the prior's rows, on two processes, stopped and gone on."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from rich.console import Console

import forked
from glf import rundir
from glf.checkpoint import load_checkpoint
from glf.cli import main
from glf.config.inference import ShardConfig
from glf.config.training import PretrainConfig, with_defaults
from glf.data.shards.read import SHARD_STRIDE, BrokenShard
from glf.data.sources import load_images
from glf.nn.prior import prior_features
from glf.runfiles import LAST
from glf.sharding import shard
from glf.train.run import pretrain
from glf.types import Batch

Settings = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """few.npz, and its shards: out with a prior, bare without. Nobody writes into them."""
    place = tmp_path_factory.mktemp("runs")
    source = load_images("fashion-mini")
    np.savez(place / "few.npz", train_images=source.pixels[:160], train_labels=source.targets[:160])
    base = ShardConfig(data=str(place / "few.npz"), out=place / "bare", per_shard=20)
    quiet = Console(file=io.StringIO())
    shard(base, quiet)
    shard(replace(base, out=place / "out", prior="pixels"), quiet)
    return place


@pytest.fixture
def settings(made: Path, tmp_path: Path) -> Settings:
    """Two epochs of four steps, by two workers."""
    return {
        "data": str(made / "out"), "batch_size": 32, "epochs": 2, "log_every": 1, "workers": 2, "shuffle": 20,
        "out": tmp_path / "run", "method": "simclr+adc",
    }  # fmt: skip


class Seen(L.Callback):
    """Keeps the batches that training was given; stops it where it is told to."""

    def __init__(self, until: int | None = None) -> None:
        self.batches: list[Batch] = []
        self.until = until

    def on_train_batch_start(self, trainer: L.Trainer, module: object, batch: Batch, batch_idx: int) -> None:
        if trainer.global_step == self.until:
            raise RuntimeError("the power is gone")
        self.batches.append(batch)


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_checkpoint(run / LAST)["state_dict"]
    return found


def keys(folder: Path) -> dict[int, int]:
    """A sample's row in the stream -> the row of the image that it was made of."""
    found = {}
    for number, path in enumerate(sorted(folder.glob("*.tar"))):
        with tarfile.open(path) as tar:
            names = [name for name in tar.getnames() if name.endswith(".png")]
        found |= {number * SHARD_STRIDE + place: int(name.removesuffix(".png")) for place, name in enumerate(names)}
    return found


def test_rows_of_the_prior_are_those_of_the_images(made: Path, settings: Settings, console: Console) -> None:
    seen = Seen()
    result = pretrain(PretrainConfig(**settings), console, [seen])
    images = load_images(str(made / "few.npz"))
    config = PretrainConfig(prior="pixels")
    prior, back = prior_features(config, images, cache=made / "cache"), keys(made / "out")
    assert len(seen.batches) == 8
    for batch in seen.batches:
        rows = [back[row] for row in batch.indices.tolist()]
        assert batch.prior is not None
        assert np.array_equal(batch.prior.numpy(), prior[rows])
        assert np.array_equal(batch.images.permute(0, 2, 3, 1).numpy(), images.pixels[rows])
        assert np.array_equal(batch.target.numpy(), images.targets[rows])
    assert result["data"] | {"name": 0, "key": 0, "classes": 0} == {
        "name": 0, "key": 0, "images": 160, "train": 140, "val": 10, "skipped": 0, "classes": 0,
    }  # fmt: skip
    assert {"val/knn", "val/rank"} <= set(result["training"])
    held = {row for batch in seen.batches for row in batch.indices.tolist() if row // SHARD_STRIDE == 7}
    assert not held, "the last shard is the probe's"
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "prior     pixels: 64 features stored with each image" in shown
    assert (
        "140 training images, 10 held out for the probe (28 x 28, 1 channel), 7 shards streamed by 2 workers" in shown
    )
    line = json.loads((settings["out"] / "metrics.jsonl").read_text().splitlines()[0])
    assert line["constrain/lpm"] > 0


def test_a_run_that_is_stopped_goes_on_to_the_same_weights(
    settings: Settings, tmp_path: Path, console: Console
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    pretrain(PretrainConfig(**{**settings, "out": whole}), console)
    with pytest.raises(RuntimeError, match="the power is gone"):
        pretrain(PretrainConfig(**{**settings, "out": stopped, "save_minutes": 0.0}), console, [Seen(until=6)])
    assert load_checkpoint(stopped / LAST)["global_step"] == 6, "in the middle of the second epoch"
    saved = rundir.read_config(stopped)
    assert (saved.workers, saved.prior, saved.prior_width) == (2, "pixels", 64)
    pretrain(PretrainConfig(out=stopped, resume=True), console)
    a, b = weights(whole), weights(stopped)
    assert all(torch.equal(value, b[name]) for name, value in a.items())


def test_from_images_to_a_backbone_by_the_command_line_with_two_processes(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = tmp_path / "shards"
    main(["shard", str(made / "few.npz"), "--out", str(shards), "--prior", "pixels", "--per-shard", "20"])
    assert "160 images in 8 shards" in capsys.readouterr().out
    path = shards / "shard-000001.tar"
    damaged = bytearray(path.read_bytes())
    damaged[512:600] = b"\0" * 88  # the first image's header
    path.write_bytes(damaged)
    small = "--device cpu --devices 2 --workers 1 --batch-size 32 --epochs 1 --log-every 1".split()
    small += "--shuffle 20 --val-images 0".split()  # every image is trained on, once
    command = [sys.executable, "-m", "glf", "pretrain", "--data", str(shards), "--out", str(tmp_path / "run"), *small]
    done = forked.run(command, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "simclr+lpm" in done.stdout
    assert done.stdout.count("run       ") == 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 6))
    assert (tmp_path / "run" / "backbone.safetensors").exists()
    skipped = (tmp_path / "run" / "skipped.txt").read_text().splitlines()
    assert len(skipped) == 1
    assert skipped[0].startswith("shard-000001.tar/")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["data"]["skipped"] == 1


class _Stalling(SimpleHTTPRequestHandler):
    """Serves files until training has begun; then it keeps the connection open and sends half of a shard."""

    begun: Callable[[], bool]
    stalled: threading.Event
    over: threading.Event

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        if not self.path.endswith(".tar") or not self.begun():
            outputfile.write(data)
            return
        outputfile.write(data[: len(data) // 2])
        outputfile.flush()
        self.stalled.set()
        self.over.wait(120)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stalling(made: Path, tmp_path: Path) -> Iterator[tuple[str, threading.Event]]:
    """The address of a server that stalls once the run has logged two steps, and the event of that."""
    metrics = tmp_path / "run" / "metrics.jsonl"

    class Handler(_Stalling):
        stalled, over = threading.Event(), threading.Event()

        @staticmethod
        def begun() -> bool:
            return metrics.exists() and len(metrics.read_text().splitlines()) >= 2

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(made / "bare"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", Handler.stalled
        Handler.over.set()
        server.shutdown()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find the children")
def test_sigterm_while_a_server_stalls_in_the_middle_of_training_ends_the_run_and_its_children(
    stalling: tuple[str, threading.Event], tmp_path: Path
) -> None:
    address, stalled = stalling
    small = "--device cpu --workers 2 --batch-size 16 --epochs 100 --log-every 1 --shuffle 4 --method simclr".split()
    command = [sys.executable, "-m", "glf", "pretrain", "--data", address, "--out", str(tmp_path / "run"), *small]
    process = forked.Forked(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert stalled.wait(120), "it has read shards until then"
        process.terminate()
        process.wait(30)  # ten seconds on an idle machine; the server would be given up only after four times thirty
    finally:
        left = in_session(process.pid)
        for one in left:
            os.kill(one, signal.SIGKILL)
    assert process.returncode == 128 + signal.SIGTERM
    assert left == []


def in_session(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, own, *_ = path.read_text().rpartition(")")[2].split()
            if int(own) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def test_one_shard_alone_is_all_trained_on(made: Path, settings: Settings, console: Console) -> None:
    (Path(settings["out"]).parent / "one.txt").write_text(str(made / "out" / "shard-000000.tar"))
    data = str(Path(settings["out"]).parent / "one.txt")
    result = pretrain(PretrainConfig(**{**settings, "data": data, "epoch_images": 64, "epochs": 1}), console)
    assert (result["data"]["train"], result["data"]["val"]) == (64, 0)
    assert "val/knn" not in result["training"], "nothing was held out"
    assert result["training"]["val/rank"] > 0
    assert rundir.read_config(settings["out"]).workers == 1, "a worker without a shard has nothing to do"


@pytest.mark.parametrize("scheme", ["pipe:", "{pipe,pipe}:", "p{i,i}pe:", "a.tar::pipe:"])
def test_a_command_in_a_saved_configuration_is_not_run(
    scheme: str, settings: Settings, tmp_path: Path, console: Console
) -> None:
    run = tmp_path / "theirs"
    run.mkdir()
    command = f"{scheme}touch {tmp_path / 'owned'}"
    rundir.write_config(run, with_defaults(PretrainConfig(**{**settings, "data": command, "epoch_images": 64})))
    (run / "checkpoints").mkdir()
    (run / LAST).touch()
    with pytest.raises(ValueError, match="may read the output of a command: repeat --data"):
        pretrain(PretrainConfig(out=run, resume=True), console)
    assert not (tmp_path / "owned").exists()


def test_rows_that_nobody_describes_are_a_prior_without_a_name(
    made: Path, settings: Settings, console: Console
) -> None:
    changed = {"data": f"{made}/out/shard-{{000000..000007}}.tar", "epoch_images": 64, "epochs": 1}
    pretrain(PretrainConfig(**{**settings, **changed}), console)
    saved = rundir.read_config(settings["out"])
    assert (saved.prior, saved.prior_width) == ("unnamed", 64)


def test_a_shard_that_breaks_ends_the_run_in_one_line(made: Path, settings: Settings, console: Console) -> None:
    place = Path(settings["out"]).parent / "copied"
    place.mkdir()
    for path in (made / "out").iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    with (place / "shard-000003.tar").open("r+b") as file:
        file.truncate(30_000)
    message = r"cannot read the shard .*shard-000003.tar: .*had begun with --resume"
    with pytest.raises(BrokenShard, match=message) as error:
        pretrain(PretrainConfig(**{**settings, "data": str(place)}), console)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": "bare"}, r"SimCLR.* needs a prior, and .* stores no prior features: .*glf shard --prior"),
        ({"method": "pcl"}, "keeps a state for every image"),
        ({"method": "diet"}, "DIET keeps a state for every image, which is impossible with shards: use a folder"),
        ({"max_images": 50}, "use --epoch-images"),
        (
            {"prior": "timm:resnet18"},
            "prior pixels, 64 wide, so --prior timm:resnet18 has no effect",
        ),
        ({"prior_width": 32}, "so --prior-width 32 has no effect"),
        ({"prior_weights": Path("w.pt")}, r"so --prior-weights w\.pt has no effect"),
        ({"data": "out/shard-{000000..000007}.tar"}, r"is unknown without a shards\.json: set --epoch-images"),
        ({"batch_size": 256}, "a batch of 256 is larger than an epoch of 140"),
        ({"devices": 8}, "7 shards are too few for 8 processes"),
        ({"shuffle": 0}, "shuffle must be at least 1, got 0"),
        ({"epoch_images": 0}, "epoch_images must be at least 1, got 0"),
        ({"method": "supcon", "labels": "none"}, "needs labels"),
        (
            {"data": "few.npz", "epoch_images": 64},
            r"--epoch-images only applies to shards, not to .*few\.npz: use --max-images",
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    changed: Settings, message: str, made: Path, settings: Settings, console: Console
) -> None:
    if "data" in changed:
        changed = {**changed, "data": str(made / changed["data"])}
    with pytest.raises(ValueError, match=message):
        pretrain(PretrainConfig(**{**settings, **changed}), console)
    assert not settings["out"].exists()


def test_the_same_prior_may_be_named_again_and_none_is_read_where_none_is_asked_for(
    made: Path, settings: Settings, console: Console
) -> None:
    seen = Seen()
    pretrain(PretrainConfig(**{**settings, "prior": "pixels", "prior_width": 64, "dry_run": True}), console, [seen])
    assert seen.batches[0].prior is not None
    seen = Seen()
    bare = {**settings, "data": str(made / "bare"), "method": "simclr", "dry_run": True}
    pretrain(PretrainConfig(**bare), console, [seen])
    assert seen.batches[0].prior is None
    assert not settings["out"].exists()
