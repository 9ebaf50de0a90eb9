"""The doctor during a run: what is noted at every step without asking the device, and its visits at logged steps."""

import shlex
from pathlib import Path
from typing import Any

import lightning as L
import torch

from glf import rundir
from glf.health.examine import UnhealthyRunError, examine
from glf.health.rules import Finding
from glf.nn.weights import FILE
from glf.train.callbacks import Metrics, RunLog
from glf.train.module import Pretraining


class HealthMonitor(L.Callback):
    """Looks at a run at its logged steps, and says once what it finds. Comes before what trusts the weights.

    It stops a run whose weights are lost, before they replace those of the last checkpoint; with ``stop``, any that is
    sick.
    """

    def __init__(self, metrics: Metrics, journal: RunLog, out: Path, stop: bool) -> None:
        self.metrics, self.journal, self.out, self.stop = metrics, journal, out, stop
        self.said: set[str] = set()
        self.noted: dict[str, int] = {}

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        if module.metrics:
            self.visit(trainer, module, module.first_bad.steps())

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.before_saving(trainer, module)

    def before_saving(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """A visit at any step. The last update has had no step after it that would show what it did."""
        assert isinstance(module, Pretraining)
        noted = module.first_bad.steps()
        self.visit(trainer, module, noted if noted or weights_finite(module) else {"weights": trainer.global_step})

    def visit(self, trainer: L.Trainer, module: Pretraining, noted: dict[str, int]) -> None:
        """Note, judge, say; and stop every process where that is due."""
        message = ""
        if trainer.is_global_zero:
            found = self.judge(trainer, noted)
            lost = any(finding.name == "not finite" for finding in found) and not weights_finite(module)
            if found and (self.stop or lost):
                message = self.farewell(trainer.global_step, found)
        message = trainer.strategy.broadcast(message)
        if message:
            raise UnhealthyRunError(message)

    def judge(self, trainer: L.Trainer, noted: dict[str, int]) -> list[Finding]:
        """Write down what was noted, examine the records, say what is new."""
        if noted != self.noted:
            self.metrics.write(trainer, {f"bad/{name}": step for name, step in noted.items()})
            self.noted = noted
        found = examine(self.metrics.records)
        for finding in found:
            if finding.name not in self.said:
                self.journal(f"doctor    {finding}", "bold red")
        self.said |= {finding.name for finding in found}
        return found

    def farewell(self, step: int, found: list[Finding]) -> str:
        """What was found, and how to go on."""
        names = ", ".join(f"{finding.name} since step {finding.since}" for finding in found)
        run = shlex.quote(str(self.out))
        again = f"start anew with --overwrite and another setting (glf doctor {run} says which)"
        if (self.out / rundir.LAST).exists():
            again += f", or go on from the last checkpoint with glf pretrain --resume --out {run}"
        return f"stopped at step {step}: {names}; {again}"


def log_verdict(journal: RunLog, final: dict[str, float], found: list[Finding], out: Path) -> None:
    """The last lines of a run: how it is, and where the backbone lies."""
    run = shlex.quote(str(out))
    shape = f"effective rank {final['val/rank']:g}, spread {final['val/spread']:g} (1 is a uniform cloud, 0 a point)"
    if found:
        names = ", ".join(f"{finding.name} since step {finding.since}" for finding in found)
        journal(f"sick: {names}; {shape}; what to try: glf doctor {run}", "bold red")
    else:
        journal(f"healthy: {shape}")
    journal(f"backbone saved as {out / FILE}; judge it with: glf evaluate {run}")


def weights_finite(module: Pretraining) -> bool:
    """Whether all weights and running statistics are finite."""
    return bool(torch.stack([value.isfinite().all() for value in module.network.state_dict().values()]).all())
