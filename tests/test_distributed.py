"""Two real processes: the gathered batch gives the gradient that one process with the whole batch has."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import forked
from forked import Forked
from glf.align.distance import Cosine
from glf.checkpoint import load_checkpoint
from glf.config.adc import AdcOptions
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS
from glf.data.sources import load_images
from glf.distributed import gather, rank, same_everywhere, world_size
from glf.methods import METHODS, parse
from glf.objective import Objective
from glf.relations import DIVERGENCES, CosineSoftmax, Relate, StudentT
from glf.terms import Banked
from glf.types import BATCH_DIM, Embeddings
from reference import draw, draw_fields

WORLD = 2
CASES = {f"{m}+{c}": (f"{m}+{c}", AdcOptions()) for m in METHODS for c in ("none", "dcm", "lpm", "adc")}
CASES |= {f"align+{law}": (f"align+{law}", AdcOptions()) for law in (*TARGET_DISTRIBUTIONS, "sigreg")}
CASES |= {
    f"simclr+adc {reading} {covariance}": ("simclr+adc", AdcOptions(reading=reading, covariance=covariance))
    for reading in ("calibrated", "paper")
    for covariance in ("batch", "running")
}
TARGETS = ("clean", "memory", "centre", "prior")
CASES |= {
    f"{m}+{c} {target}": (f"{m}+{c}", AdcOptions(target=target, perplexity=3.0, memory_size=5))
    for m in ("simclr", "byol", "vicreg")
    for c in ("dcm", "adc")
    for target in TARGETS
}
CASES["simclr+lpm with bandwidths"] = "simclr+lpm", AdcOptions(prior_perplexity=3.0)
CASES |= {f"simclr+adc at {at}": ("simclr+adc", AdcOptions(lpm_at=at)) for at in ("h", "bank")}
RELATIONS = {
    f"relation {divergence} among {among}": (
        lambda divergence=divergence, among=among: Relate(
            StudentT("prior"), CosineSoftmax("r"), divergence, among=among
        )
    )
    for divergence in DIVERGENCES
    for among in ("batch", "views", "bank")
}
# A teacher and a prior have none.
WITH_GRADIENT = ("z", "r", "p", "scores", "instance_scores", "maps", "generated", "prototypes")


def objective_of(case: str) -> Objective:
    if case in RELATIONS:
        return Objective(align=Cosine(), constrain=RELATIONS[case]())
    spec, options = CASES[case]
    return parse(spec, options).build()


def needed(case: str) -> dict[str, torch.Tensor]:
    fields = draw_fields(batch=8)
    return {name: fields[name] for name in sorted(objective_of(case).needs)}


def outcome(case: str, fields: dict[str, torch.Tensor], across=lambda e: e) -> dict[str, torch.Tensor]:
    """The loss, and its gradient at each leaf that takes one."""
    leaves = {name: x.clone().requires_grad_(name in WITH_GRADIENT) for name, x in fields.items()}
    objective = objective_of(case)
    for term in objective.modules():
        if isinstance(term, Banked) and term.reads_bank:
            term.set_bank(draw(12, 3), torch.arange(12))
    total = objective(across(Embeddings(**leaves))).total
    total.backward()
    gradients = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
    return {"loss": total.detach()} | {name: x for name, x in gradients.items() if name in WITH_GRADIENT}


def shard(name: str, x: torch.Tensor, number: int) -> torch.Tensor:
    dim = BATCH_DIM[name]
    return x if dim is None else x.chunk(WORLD, dim=dim)[number]


def naive(e: Embeddings) -> Embeddings:
    """What peers did: a plain all_gather, with the own shard put back for its gradient."""
    shards = [torch.empty_like(e.z) for _ in range(WORLD)]
    dist.all_gather(shards, e.z.detach().contiguous())
    shards[rank()] = e.z
    return Embeddings(z=torch.cat(shards, dim=1))


def work(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=number, world_size=WORLD)
    own = {case: {n: shard(n, x, number) for n, x in needed(case).items()} for case in [*CASES, *RELATIONS]}
    results = {case: outcome(case, fields, gather) for case, fields in own.items()}
    results["naive"] = outcome("simclr+none", own["simclr+none"], naive)
    results["place"] = {"rank": torch.tensor(rank()), "world_size": torch.tensor(world_size())}
    told = {"same": same_everywhere(7, 5), "differs": same_everywhere(7, number)}
    results["told"] = {name: torch.tensor(answer) for name, answer in told.items()}
    torch.save(results, f"{folder}/{number}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.get_context("forkserver").set_forkserver_preload(forked.IMPORTED)
    mp.start_processes(work, args=(str(folder),), nprocs=WORLD, start_method="forkserver")
    return [torch.load(folder / f"{number}.pt") for number in range(WORLD)]


@pytest.mark.parametrize("case", [*CASES, *RELATIONS])
def test_two_processes_have_the_gradient_of_one(case, processes):
    whole = outcome(case, needed(case))
    assert any(whole[name].any() for name in WITH_GRADIENT if name in whole)
    for number, results in enumerate(processes):
        torch.testing.assert_close(results[case]["loss"], whole["loss"], rtol=1e-10, atol=1e-12)
        for name in whole.keys() - {"loss"}:
            # Data-parallel training averages over processes; parameters have the whole gradient on each.
            mine = results[case][name] / (1 if BATCH_DIM[name] is None else WORLD)
            torch.testing.assert_close(mine, shard(name, whole[name], number), rtol=1e-10, atol=1e-12)


def test_a_naive_gather_gives_exactly_half(processes):
    whole = outcome("simclr+none", needed("simclr+none"))
    for number, results in enumerate(processes):
        torch.testing.assert_close(results["naive"]["loss"], whole["loss"], rtol=1e-10, atol=0)
        mine = results["naive"]["z"] / WORLD
        torch.testing.assert_close(mine, shard("z", whole["z"], number) / 2, rtol=1e-10, atol=1e-12)


def test_processes_know_their_place(processes):
    places = [{name: value.item() for name, value in results["place"].items()} for results in processes]
    assert places == [{"rank": number, "world_size": WORLD} for number in range(WORLD)]


def test_every_process_is_told_whether_all_have_the_same(processes):
    told = [{name: value.item() for name, value in results["told"].items()} for results in processes]
    assert told == [{"same": True, "differs": False}] * WORLD
    assert same_everywhere(7)


def test_one_process_gathers_nothing():
    e = Embeddings(z=draw_fields()["z"])
    assert gather(e) is e
    assert (rank(), world_size()) == (0, 1)


@pytest.mark.parametrize("method", ["byol+adc", "pcl+sphere"])
def test_two_processes_train_one_run(method, tmp_path):
    """The command line with two devices: one directory, one set of files, the global batch shared."""
    # Lightning starts the second process: with the program of the first, or with its module.
    start = [Path(sys.executable).parent / "glf"] if method == "byol+adc" else [sys.executable, "-m", "glf"]
    command = [*start, "pretrain", "--method", method, "--out", tmp_path / "run"]
    small = "--device cpu --devices 2 --max-images 320 --batch-size 64 --epochs 2 --val-images 64 --log-every 1".split()
    small += "--image-size 16 --workers 0".split()
    small += "--options clusters 4".split() if method.startswith("pcl") else []
    if method == "byol+adc":
        done = subprocess.run([*command, *small], capture_output=True, text=True, timeout=300)
    else:
        done = forked.run([*command, *small], timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run       ") == 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    assert [line["epoch"] for line in lines if "val/knn" in line] == [0, 1]
    assert (tmp_path / "run" / "backbone.safetensors").exists()


SMALL = (
    "--device cpu --devices 2 --max-images 128 --batch-size 32 --epochs 1 --val-images 32 --workers 0 --no-auto".split()
)


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def node(rank: int, port: str, *command: object) -> Forked:
    """One of two processes, as the launcher of a cluster would start it."""
    return Forked(
        [sys.executable, *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
    )


def train_together(run: Path, *nodes: tuple[Path, list[str]]) -> list[tuple[int | None, str]]:
    """Exit code and errors of two processes, each in a folder and with options of its own."""
    code = "import os, sys; os.chdir(sys.argv.pop(1)); from glf.cli import main; main()"
    port = free_port()
    processes = [
        node(rank, port, "-c", code, folder, "pretrain", "--method", "simclr+adc", "--out", run, *SMALL, *options)
        for rank, (folder, options) in enumerate(nodes)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


@pytest.mark.parametrize("option", ["--lr 0.01", "--seed 3", "--nu 0.5"])
def test_processes_with_different_options_are_refused(option, tmp_path):
    """As a stale script on one node would start them; each process says what it has."""
    for code, said in train_together(tmp_path / "run", (tmp_path, []), (tmp_path, option.split())):
        assert code == 2
        assert f"the processes disagree on {option[2:].split()[0]} (" in said
        assert "Traceback" not in said
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_processes_with_other_images_under_the_same_name_are_refused(tmp_path):
    """Each node has a file of that name, with as many images; copies of the same ones are accepted."""
    images = load_images("fashion-mini").pixels[:161]
    changed = images[:160].copy()
    changed[7] = images[160]
    nodes = []
    for number, pixels in enumerate((images[:160], images[:160], changed)):
        (tmp_path / f"node{number}").mkdir()
        np.save(tmp_path / f"node{number}" / "pics.npy", pixels)
        os.utime(tmp_path / f"node{number}" / "pics.npy", ns=(number, number))
        nodes.append((tmp_path / f"node{number}", ["--data", "pics.npy"]))
    for code, said in train_together(tmp_path / "other", nodes[0], nodes[2]):
        assert code == 2
        assert "processes disagree on the images (pics.npy on this rank): put the same data on every node" in said
    assert [code for code, _ in train_together(tmp_path / "same", nodes[0], nodes[1])] == [0, 0]


def test_a_process_that_waits_for_the_others_says_so(tmp_path):
    """The other one has failed before they could meet."""
    code = "import glf.train.trainer as t; t.MEETING_PATIENCE = 0.2; from glf.cli import main; main()"
    process = node(0, port := free_port(), "-c", code, "pretrain", "--out", tmp_path / "run", *SMALL)
    _, errors = process.pipes
    try:
        deadline, said = time.monotonic() + 120, ""
        while "waiting for" not in said:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
            said = errors.read_text()
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert f"rank 0 is waiting for the other processes of the run, 2 in all at 127.0.0.1:{port}" in said


def started(run: Path) -> Forked:
    """A long run of two processes that has logged two steps."""
    command = [sys.executable, "-m", "glf", "pretrain", "--method", "simclr", "--out", run]
    small = (
        "--device cpu --devices 2 --max-images 640 --batch-size 64 --epochs 200 --val-images 64 --log-every 3".split()
    )
    small += "--backbone timm:test_resnet --image-size 16 --workers 0".split()
    process = Forked([*command, *small], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("loss") < 2:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_a_signal_to_one_process_stops_them_all_at_one_step(tmp_path):
    process = started(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert said.count("stopped by SIGTERM after step") == 1, "the first process speaks for all"
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] % 3 == 1, "a logged step"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="nothing says which process started which")
def test_a_process_that_dies_ends_the_others_in_one_line(tmp_path):
    process = started(tmp_path / "run")
    (other,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(other), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.count("glf: another process of this run has ended") == 1
    assert "Traceback" not in said
