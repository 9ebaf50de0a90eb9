"""Kill a run many times, resume it each time, and compare the result with an uninterrupted run.

    python benchmarks/soak.py --kills 200               # byol, with an EMA teacher
    python benchmarks/soak.py --kills 200 --method moco # with a queue of 96 embeddings

Each kill is a SIGKILL: half at a random moment, half while a checkpoint is written. The state is saved after every step
(``--save-minutes 0``), so most kills fall into the middle of an epoch. Weights, teacher, queue, optimizer, schedule and
every logged loss must be bit-identical. Cost: three seconds per kill. --store writes the outcome to results/soak.json.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # forking after importing torch is only safe without threads

import timm  # noqa: F401 (imported once, before forking)
import torch

from glf.checkpoint import load_checkpoint
from glf.config.training import PretrainConfig
from glf.result import provenance, write_file
from glf.runfiles import CHECKPOINTS, LAST, METRICS
from glf.train.run import pretrain

STORED = Path(__file__).parent / "results" / "soak.json"
STEPS_PER_EPOCH, BATCH = 9, 32
TIMES = {"images_per_second", "data_wait"}  # metrics that may differ


def settings(method: str, epochs: int, image_size: int) -> PretrainConfig:
    return PretrainConfig(
        method=method,
        backbone="timm:test_resnet",  # with batch normalisation: its running statistics must survive, too
        image_size=image_size,
        max_images=(STEPS_PER_EPOCH + 1) * BATCH,
        val_images=BATCH,
        batch_size=BATCH,
        epochs=epochs,
        probe_every=4,
        log_every=1,
        options={"queue": 96.0} if method.startswith("moco") else {},
        device="cpu",
        workers=0,
    )


def start(config: PretrainConfig) -> int:
    """Fork a process that trains; return its id."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            pretrain(config)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def ended(number: int) -> bool:
    """Whether the process has finished; exit if it has failed."""
    found, status = os.waitpid(number, os.WNOHANG)
    if found and status:
        sys.exit(f"a resumed run failed with status {status}")
    return bool(found)


def while_running(number: int) -> Iterator[None]:
    """Poll the process until it ends."""
    deadline = time.monotonic() + 600  # machines may be busy
    while not ended(number):
        if time.monotonic() > deadline:
            os.kill(number, signal.SIGKILL)
            sys.exit("a run has hung for ten minutes")
        yield
        time.sleep(0.001)


def steps(run: Path) -> int:
    path = run / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(number: int, run: Path, chance: random.Random) -> str | None:
    """Kill the process after it has made progress; return when (any, writing), or None if it ended first."""
    before, writing = steps(run), chance.random() < 0.5
    moments = while_running(number)
    for _ in moments:
        if (run / LAST).exists() and steps(run) > before:
            break
    else:
        return None
    moment = time.monotonic() + chance.uniform(0, 0.3)
    for _ in moments:
        partial = list((run / CHECKPOINTS).glob(f".*.{number}.glf-partial"))
        if partial if writing else time.monotonic() > moment:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            return "writing" if list((run / CHECKPOINTS).glob(f".*.{number}.glf-partial")) else "any"
    return None


def final_state(run: Path) -> dict[str, Any]:
    """Everything that must be identical."""
    saved = load_checkpoint(run / LAST)
    state = {name: saved[name] for name in ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step")}
    lines = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    return {**state, "metrics": [{k: v for k, v in line.items() if k not in TIMES} for line in lines]}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def soak(method: str, kills: int, seed: int, image_size: int, folder: Path) -> dict[str, Any]:
    """Kill one run ``kills`` times and compare it with an uninterrupted one."""
    config = settings(method, max(2, -(-kills * 4 // STEPS_PER_EPOCH)), image_size)
    chance, counts, number = random.Random(seed), {"any": 0, "writing": 0}, 0
    run, alone = folder / "killed", folder / "alone"
    while True:
        number = start(replace(config, out=run, save_minutes=0.0, resume=(run / LAST).exists(), overwrite=False))
        when = killed(number, run, chance) if sum(counts.values()) < kills else None
        if when is None:
            break
        counts[when] += 1
    for _ in while_running(number) if sum(counts.values()) == kills else ():
        pass
    for _ in while_running(start(replace(config, out=alone))):
        pass
    mine, theirs = final_state(run), final_state(alone)
    differs = [name for name in theirs if not same(mine[name], theirs[name])]
    left = [path.name for path in (run / CHECKPOINTS).glob(".*")]
    total = config.epochs * STEPS_PER_EPOCH
    return {"method": method, "steps": total, "kills": counts, "differs": differs, "leftovers": left}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--method", default="byol")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--store", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        found = soak(arguments.method, arguments.kills, arguments.seed, arguments.image_size, Path(place))
    print(json.dumps(found))
    if arguments.store:
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        command = f"python benchmarks/soak.py --kills {arguments.kills} --method {arguments.method}"
        stored[arguments.method] = {**found, **provenance(), "command": command}
        write_file(STORED, json.dumps(stored, indent=1) + "\n")
    sys.exit(1 if found["differs"] or found["leftovers"] or sum(found["kills"].values()) < arguments.kills else 0)
