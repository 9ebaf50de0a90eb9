"""What keeps a step fast: nothing waits for the device, and a compiled backbone learns the same."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from glf.checkpoint import load_checkpoint
from glf.train import callbacks
from train.test_run import lines

Run = Callable[..., Path]


class Reads(TorchDispatchMode):
    """Counts numbers taken out of tensors (.item(), bool(), float()): each makes the processor wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("colours", ["fused", "exact"])
@pytest.mark.parametrize("method", ["simclr+adc", "byol+adc", "barlow_twins", "vicreg+lpm"])
def test_a_step_takes_no_number_out_of_a_tensor(
    method: str, colours: str, small_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the batch's arrival to the end of the optimiser's step; logging, every so many steps, may."""
    reads: list[int] = []

    class Watched(callbacks.Throughput):
        def on_train_batch_start(self, trainer: L.Trainer, *rest: Any) -> None:
            super().on_train_batch_start(trainer, *rest)
            self.mode = Reads()
            self.mode.__enter__()

        def on_train_batch_end(self, trainer: L.Trainer, *rest: Any) -> None:
            self.mode.__exit__(None, None, None)
            reads.append(self.mode.count)
            super().on_train_batch_end(trainer, *rest)

    monkeypatch.setattr("glf.train.run.Throughput", Watched)
    small_run(method=method, colours=colours, augment="symmetric", epochs=2, log_every=3, lr=1e-3)
    assert len(reads) == 4
    assert reads[1:3] == [0, 0]
    with Reads() as seen:
        torch.ones(1).item()
    assert seen.count == 1, "one that reads would have been seen"


@pytest.mark.filterwarnings("default")  # dynamo's tracing warns, and takes an error for a failed type check
def test_compiled_or_not_the_run_is_the_same(small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dynamo's own tracing but without a C++ compiler, which not every machine has."""
    plain = small_run(method="byol+adc")
    asked = []
    monkeypatch.setattr(torch, "compile", partial(_traced, torch.compile, asked))
    compiled = small_run(method="byol+adc", compile=True, out=tmp_path / "compiled")
    assert len(asked) == 1
    states = [load_checkpoint(run / "checkpoints" / "last.ckpt")["state_dict"] for run in (plain, compiled)]
    assert states[0].keys() == states[1].keys()
    for line, other in zip(lines(plain), lines(compiled), strict=True):
        name = next(name for name in ("loss", "val/rank", "val/mass/dat") if name in line)
        assert line[name] == pytest.approx(other[name], rel=1e-3)


def _traced(compile_: Any, asked: list[Any], module: torch.nn.Module) -> Any:
    asked.append(module)
    return compile_(module, backend="eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_run_with_torchs_own_compiler(small_run: Run, tmp_path: Path) -> None:
    plain, compiled = small_run(), small_run(compile=True, out=tmp_path / "compiled")
    first, second = ([line["loss"] for line in lines(run) if "loss" in line] for run in (plain, compiled))
    assert first == pytest.approx(second, rel=1e-3)
