"""The Lightning trainer of a run: devices, nodes, precision, checkpoint files."""

import logging
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.io import TorchCheckpointIO
from rich.console import Console

from glf.checkpoint import load_checkpoint, save_checkpoint
from glf.config.training import ResolvedPretrainConfig
from glf.data.batches import BatchLoader
from glf.device import accelerator
from glf.distributed import launched_rank
from glf.ui import say

MEETING_PATIENCE = 20.0  # seconds that a process waits for the others without a word
_NOISE = (
    ".*does not have many workers.*",
    ".*treespec, LeafSpec.*",
    ".*your dataloader is not resumable.*",  # ours starts where the checkpoint was written
    ".*sync_dist=True.*",  # every process computes the global loss
    ".*in eval mode at the start of training.*",  # the encoder of an adaptation stays so
)


def make_trainer(config: ResolvedPretrainConfig, callbacks: Sequence[L.Callback], steps: int = -1) -> L.Trainer:
    """Return the trainer of a run, or of its first ``steps``."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for noise in _NOISE:
        warnings.filterwarnings("ignore", noise)
    plugins: list[Any] = [_AtomicIO()]
    if SLURMEnvironment.detect():  # a requeued job resumes from our checkpoint with --resume
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return L.Trainer(
        accelerator=accelerator(config.device),
        devices=config.devices,
        num_nodes=config.nodes,
        strategy=config.strategy,
        sync_batchnorm=config.sync_norm,
        precision=config.precision,
        max_epochs=config.epochs,
        max_steps=steps,
        callbacks=[_Meeting(config.devices * config.nodes), *callbacks, _EndWorkers()],
        plugins=plugins,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )


def train_module(trainer: L.Trainer, module: L.LightningModule, resume: Path | None = None) -> None:
    """Run ``trainer.fit``; re-raise Lightning's SystemExit on a second Ctrl-C as KeyboardInterrupt."""
    try:
        trainer.fit(module, ckpt_path=resume)
    except SystemExit:
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise


class _Meeting(L.Callback):
    """Says what a process waits for until all processes of the run have met: one that has failed never comes.

    torch gives up after half an hour, because some nodes may start late.
    """

    def __init__(self, processes: int) -> None:
        self.timer = threading.Timer(MEETING_PATIENCE, self.say_so, [processes])
        self.timer.daemon = True
        if processes > 1:
            self.timer.start()

    def say_so(self, processes: int) -> None:
        where = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in os.environ)
        say(
            Console(stderr=True),
            f"rank {launched_rank()} is waiting for the other processes of the run, {processes} in all"
            f"{f' at {where}' if where else ''}: if one has failed, see its log, and stop this one",
        )

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.timer.cancel()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.timer.cancel()


class _EndWorkers(L.Callback):
    """Ends the workers of a run that fails or is stopped: one that waits for a server would outlive it."""

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        if isinstance(trainer.train_dataloader, BatchLoader):
            trainer.train_dataloader.end_workers()


class _AtomicIO(TorchCheckpointIO):
    """Lightning checkpoint files, written and read by glf.checkpoint."""

    def save_checkpoint(self, checkpoint_: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        save_checkpoint(checkpoint_, Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return load_checkpoint(Path(path))
