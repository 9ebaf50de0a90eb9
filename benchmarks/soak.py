"""Kill a run again and again, go on with it each time, and compare its end with that of a run that was left alone.

    python benchmarks/soak.py --kills 200               # byol, whose teacher is a moving average
    python benchmarks/soak.py --kills 200 --method moco # whose queue remembers 96 images

Every kill is a SIGKILL to a process of its own: half at a random moment, half while a checkpoint is written. The
state is saved after every step (``--save-minutes 0``), so that most of them fall into the middle of an epoch. Weights,
teacher, queue, optimiser, schedule and every logged loss must be the same to the last bit. Cost: three seconds a kill.
--store keeps what came of it in results/soak.json.
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

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes are forked from one that has loaded torch, and has no threads

import timm  # noqa: F401 (here, or every process would load it)
import torch

from glf import rundir
from glf.checkpoint import load_checkpoint
from glf.config.training import PretrainConfig
from glf.result import provenance, write_file
from glf.train.run import pretrain

STORED = Path(__file__).parent / "results" / "soak.json"
STEPS_PER_EPOCH, BATCH = 9, 32
TIMES = {"images_per_second", "data_wait"}  # how fast it was, not what was learnt


def settings(method: str, epochs: int) -> PretrainConfig:
    return PretrainConfig(
        method=method,
        backbone="timm:test_resnet",  # batch normalisation: running statistics must survive too
        image_size=32,
        limit=(STEPS_PER_EPOCH + 1) * BATCH,
        val_images=BATCH,
        batch_size=BATCH,
        epochs=epochs,
        probe_every=4,
        log_every=1,
        options={"queue": 96.0} if method.startswith("moco") else {},
        device="cpu",
        workers=0,
    )


def child(config: PretrainConfig) -> int:
    """A process that trains; its number."""
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
    """Whether it has come to its end by itself; a failure is ours too."""
    found, status = os.waitpid(number, os.WNOHANG)
    if found and status:
        sys.exit(f"a resumed run failed with status {status}")
    return bool(found)


def waiting(number: int) -> Iterator[None]:
    """As long as it trains, a moment at a time."""
    deadline = time.monotonic() + 600  # a busy machine may take long
    while not ended(number):
        if time.monotonic() > deadline:
            os.kill(number, signal.SIGKILL)
            sys.exit("a run has hung for ten minutes")
        yield
        time.sleep(0.001)


def steps(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(number: int, run: Path, chance: random.Random) -> str | None:
    """Kill it once it has got on; returns when, or None if it had ended before."""
    before, writing = steps(run), chance.random() < 0.5
    moments = waiting(number)
    for _ in moments:
        if (run / rundir.LAST).exists() and steps(run) > before:
            break
    else:
        return None
    again = time.monotonic() + chance.uniform(0, 0.3)
    for _ in moments:
        half = list((run / rundir.LAST.parent).glob(f".*.{number}"))
        if half if writing else time.monotonic() > again:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            return "writing" if list((run / rundir.LAST.parent).glob(f".*.{number}")) else "any"
    return None


def learnt(run: Path) -> dict[str, Any]:
    """Everything that must be the same."""
    saved = load_checkpoint(run / rundir.LAST)
    state = {name: saved[name] for name in ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step")}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {**state, "metrics": [{k: v for k, v in line.items() if k not in TIMES} for line in lines]}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def soak(method: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """So many kills over one run; what came of it."""
    config = settings(method, epochs=max(2, -(-kills * 4 // STEPS_PER_EPOCH)))
    chance, counts, number = random.Random(seed), {"any": 0, "writing": 0}, 0
    run, alone = folder / "killed", folder / "alone"
    while True:
        number = child(replace(config, out=run, save_minutes=0.0, resume=(run / rundir.LAST).exists(), overwrite=False))
        when = killed(number, run, chance) if sum(counts.values()) < kills else None
        if when is None:
            break
        counts[when] += 1
    for _ in waiting(number) if sum(counts.values()) == kills else ():
        pass
    for _ in waiting(child(replace(config, out=alone))):
        pass
    mine, theirs = learnt(run), learnt(alone)
    differs = [name for name in theirs if not same(mine[name], theirs[name])]
    left = [path.name for path in (run / rundir.LAST.parent).glob(".*")]
    total = config.epochs * STEPS_PER_EPOCH
    return {"method": method, "steps": total, "kills": counts, "differs": differs, "leftovers": left}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--method", default="byol")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        found = soak(arguments.method, arguments.kills, arguments.seed, Path(place))
    print(json.dumps(found))
    if arguments.store:
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        command = f"python benchmarks/soak.py --kills {arguments.kills} --method {arguments.method}"
        stored[arguments.method] = {**found, **provenance(), "command": command}
        write_file(STORED, json.dumps(stored, indent=1) + "\n")
    sys.exit(1 if found["differs"] or found["leftovers"] or sum(found["kills"].values()) < arguments.kills else 0)
