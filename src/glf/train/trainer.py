"""Lightning's trainer, as every run has it: devices, nodes, precision, files."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.io import TorchCheckpointIO

from glf import checkpoint
from glf.config.training import ResolvedPretrainConfig
from glf.device import accelerator

_NOISE = (
    ".*does not have many workers.*",
    ".*treespec, LeafSpec.*",
    ".*your dataloader is not resumable.*",  # ours begins where the checkpoint was written
    ".*sync_dist=True.*",  # every process has the loss of all
)


def make_trainer(config: ResolvedPretrainConfig, callbacks: Sequence[L.Callback], steps: int = -1) -> L.Trainer:
    """The trainer of a run, or of its first ``steps``."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for noise in _NOISE:
        warnings.filterwarnings("ignore", noise)
    plugins: list[Any] = [_AtomicIO()]
    if SLURMEnvironment.detect():  # a requeued job goes on with --resume, from our checkpoint and no other
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
        callbacks=list(callbacks),
        plugins=plugins,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )


def fit(trainer: L.Trainer, module: L.LightningModule, resume: Path | None = None) -> None:
    """Train. A second Ctrl-C, which Lightning answers with an exit, reaches our caller as what it was."""
    try:
        trainer.fit(module, ckpt_path=resume)
    except SystemExit:
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise


class _AtomicIO(TorchCheckpointIO):
    """Lightning's checkpoints through our own save and load."""

    def save_checkpoint(self, checkpoint_: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        checkpoint.save(checkpoint_, Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return checkpoint.load(Path(path))


def check_sharing(config: ResolvedPretrainConfig) -> None:
    """A batch that the processes and the parts of a step cannot share is refused before any data is read."""
    processes = config.devices * config.nodes
    if config.batch_size % (processes * config.accumulate):
        shared = f"{config.nodes} x {config.devices} devices" if config.nodes > 1 else f"{config.devices} devices"
        raise ValueError(
            f"a global batch of {config.batch_size} cannot be shared by {shared} in {config.accumulate} parts each:"
            f" --batch-size must be a multiple of {processes * config.accumulate}"
        )
    if config.sync_norm and accelerator(config.device) == "cpu":
        raise ValueError("batch normalisation over all devices (--sync-norm) runs on GPUs only, as torch has it")
