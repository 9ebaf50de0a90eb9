"""The doctor during a run: examines the metrics at logged steps, and stops a run whose weights are lost."""

import shlex
from pathlib import Path
from typing import Any

import lightning as L
import torch

from glf.health.examine import UnhealthyRunError, examine
from glf.health.rules import Finding
from glf.runfiles import BACKBONE, LAST
from glf.train.callbacks import Metrics, RunLog
from glf.train.module import Pretraining


class HealthMonitor(L.Callback):
    """Examines a run at its logged steps and reports each problem once. Comes before the callbacks that save weights.

    It stops a run with non-finite weights before they overwrite the last checkpoint; with ``stop``, a run with any
    problem.
    """

    def __init__(self, metrics: Metrics, log: RunLog, out: Path, stop: bool) -> None:
        self.metrics, self.log_line, self.out, self.stop = metrics, log, out, stop
        self.reported: set[str] = set()
        self.nonfinite: dict[str, int] = {}

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        if module.metrics:
            self.check(trainer, module, module.nonfinite.steps())

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.check_before_saving(trainer, module)

    def check_before_saving(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Check before saving: no logged loss reflects the last optimizer step yet, so test the weights themselves."""
        assert isinstance(module, Pretraining)
        nonfinite = module.nonfinite.steps()
        if not nonfinite and not weights_finite(module):
            nonfinite = {"weights": trainer.global_step}
        self.check(trainer, module, nonfinite)

    def check(self, trainer: L.Trainer, module: Pretraining, nonfinite: dict[str, int]) -> None:
        """Record non-finite tensors, examine the metrics, report new problems; stop every process if necessary."""
        message = ""
        if trainer.is_global_zero:
            findings = self._examine(trainer, nonfinite)
            lost = any(finding.name == "not finite" for finding in findings) and not weights_finite(module)
            if findings and (self.stop or lost):
                message = self._stop_message(trainer.global_step, findings)
        message = trainer.strategy.broadcast(message)
        if message:
            raise UnhealthyRunError(message)

    def _examine(self, trainer: L.Trainer, nonfinite: dict[str, int]) -> list[Finding]:
        if nonfinite != self.nonfinite:
            self.metrics.write(trainer, {f"bad/{name}": step for name, step in nonfinite.items()})
            self.nonfinite = nonfinite
        findings = examine(self.metrics.records)
        for finding in findings:
            if finding.name not in self.reported:
                self.log_line(f"doctor    {finding}", "bold red")
        self.reported |= {finding.name for finding in findings}
        return findings

    def _stop_message(self, step: int, findings: list[Finding]) -> str:
        again = try_again(self.out)
        if (self.out / LAST).exists():
            again += (
                f", or continue from the last checkpoint with glf pretrain --resume --out {shlex.quote(str(self.out))}"
            )
        return f"stopped at step {step}: {_names(findings)}; {again}"


def log_verdict(log: RunLog, final: dict[str, float], findings: list[Finding] | None, out: Path) -> None:
    """Log the last lines of a run: its health, None if it was too short to tell, and where the backbone is."""
    run = shlex.quote(str(out))
    shape = f"effective rank {final['val/rank']:g}, spread {final['val/spread']:g} (1 is uniform, 0 a single point)"
    if findings:
        log(f"unhealthy: {_names(findings)}; {shape}; what to try: glf doctor {run}", "bold red")
    else:
        log(f"too short to tell whether it is healthy: {shape}" if findings is None else f"healthy: {shape}")
    log(f"backbone saved as {out / BACKBONE}; evaluate it with: glf evaluate {run}")


def refuse_unhealthy(findings: list[Finding] | None, out: Path) -> None:
    """Raise if a run that should stop at any problem has ended with one."""
    if findings:
        raise UnhealthyRunError(f"ended with a problem: {_names(findings)}; {try_again(out)}")


def try_again(out: Path) -> str:
    """What to do after a run was stopped because of a problem."""
    return f"start again with --overwrite and another setting (glf doctor {shlex.quote(str(out))} suggests one)"


def _names(findings: list[Finding]) -> str:
    return ", ".join(f"{finding.name} since step {finding.since}" for finding in findings)


def weights_finite(module: Pretraining) -> bool:
    """Return whether all weights and running statistics are finite."""
    return bool(torch.stack([value.isfinite().all() for value in module.network.state_dict().values()]).all())
