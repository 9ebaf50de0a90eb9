"""glf pretrain: resolve the config, load the data, build the network, train, save."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from rich.console import Console

from glf import rundir
from glf.config.base import to_dict
from glf.config.training import AdaptConfig, PretrainConfig
from glf.data.images import stratified_sample
from glf.device import seed_everything
from glf.distributed import is_lost_peer
from glf.health.examine import UnhealthyRunError, examine, read_metrics, too_short
from glf.health.rules import Finding
from glf.loggers import Loggers, final_record
from glf.malloc import retain_freed_memory
from glf.nn.features import NotFiniteError
from glf.nn.network import Network
from glf.nn.recompute import checkpoint_activations
from glf.nn.weights import build_backbone, crop_size, save_backbone
from glf.result import provenance, update_result
from glf.runfiles import BACKBONE, CHECKPOINTS, LAST, LOG, METRICS
from glf.train.callbacks import Metrics, Probe, RefreshClusters, RunLog, Throughput, UpdateTeacher
from glf.train.checkpointing import Checkpoints, StopRun
from glf.train.class_mass import ClassMass
from glf.train.inputs import Inputs, load_inputs
from glf.train.memory import check_step
from glf.train.module import Pretraining
from glf.train.monitor import HealthMonitor, log_verdict, refuse_unhealthy, try_again
from glf.train.optim import scaled_lr
from glf.train.progress import ProgressBar
from glf.train.resolve import Resolved, resolve
from glf.train.sameness import SameConfig, SameImages
from glf.train.trainer import make_trainer, train_module
from glf.ui import counted

PROBE_BANK = 5_000  # images of the online probe's k-NN bank; evaluation uses the whole training set


def pretrain(
    config: PretrainConfig, console: Console | None = None, callbacks: Sequence[L.Callback] = ()
) -> dict[str, Any]:
    """Train a backbone and return the content of result.json, or {} for a dry run and on other ranks.

    ``callbacks`` are Lightning callbacks; they come after those that save. A run that the doctor stops raises
    UnhealthyRunError.
    """
    log = RunLog(console or Console())
    run = resolve(config)
    for choice in run.choices:
        log(str(choice))
    if run.hint:
        log(run.hint)
    inputs = load_inputs(run)
    module = build(run, inputs, log)
    with (
        rundir.create(run.config) as out,
        Loggers(out, run.config.logger, log) as loggers,
        retain_freed_memory(run.accelerator == "cpu"),
    ):
        if out is not None:
            log.open(out / LOG)
            rundir.note_skipped(out, inputs.images.skipped, keep=inputs.streamed and run.config.resume)
        announce(log, run, inputs, module)
        trained = fit(run, inputs, module, out, log, callbacks, loggers)
        if out is None:
            log("dry run: trained two steps, wrote nothing")
        if out is None or not trained.trainer.is_global_zero:
            return {}
        return save(run, inputs, module, trained, out, log)


def build(run: Resolved, inputs: Inputs, log: RunLog) -> Pretraining:
    """Compute the prior's features and build the Lightning module."""
    config, objective = run.config, run.objective
    image_size = config.image_size or crop_size(inputs.images)
    backbone = build_backbone(inputs.images, image_size, config, inputs.statistics)
    if config.checkpoint_activations:
        checkpoint_activations(backbone)
    check_step(backbone, image_size, config)
    inputs.check_labels(run)
    inputs.compute_prior(log)
    inputs.fill_bank(objective)
    seed_everything(config.seed)
    return Pretraining(
        network=Network(
            backbone,
            run.method.heads,
            objective.needs,
            classes=len(inputs.classes),
            prior=inputs.prior_width,
            rows=torch.from_numpy(inputs.train),
        ),
        objective=objective,
        method=run.method,
        policy=run.policy,
        image_size=image_size,
        config=config,
        steps_per_epoch=inputs.count // config.batch_size,
        dataloader=inputs.dataloader,
    )


class Trained(NamedTuple):
    """What remains to be saved after training."""

    trainer: L.Trainer
    probe: Probe
    throughput: Throughput
    loggers: Loggers


def fit(
    run: Resolved,
    inputs: Inputs,
    module: Pretraining,
    out: Path | None,
    log: RunLog,
    callbacks: Sequence[L.Callback],
    loggers: Loggers,
    *,
    bank_size: int = PROBE_BANK,
) -> Trained:
    """Train; without a run directory (``out``) for two steps. ``bank_size`` is that of the online probe."""
    config, images, train = run.config, inputs.images, inputs.train
    throughput = Throughput()
    metrics = Metrics(out / METRICS, throughput, loggers) if out else None
    bank = train[stratified_sample(images.targets[train], min(len(train), bank_size), config.seed)]
    with_mass = images.labelled and len(inputs.val) and not inputs.streamed
    mass = ClassMass(images, inputs.val, inputs.prior) if with_mass else None
    probe = Probe(images, bank, inputs.val, config.probe_every, metrics, mass, log)
    same = SameImages(images, total=inputs.total, train=inputs.count, key=inputs.key, log=log)
    before: list[L.Callback] = [SameConfig(config), same, RefreshClusters(images, train), UpdateTeacher()]
    progress_bar = ProgressBar(log, throughput, probe)
    own = [*before, progress_bar]
    if out is not None and metrics is not None:
        monitor = HealthMonitor(metrics, log, out, config.stop_on_problem)
        checkpoints = Checkpoints(
            out / CHECKPOINTS,
            probe,
            monitor,
            minutes=config.save_minutes,
            every=config.save_every,
            keep=config.keep,
        )
        own = [*before, metrics, monitor, probe, progress_bar, checkpoints]
    trainer = make_trainer(config, [*own, *callbacks, throughput], steps=2 if out is None else -1)
    resume = out / LAST if out and config.resume and (out / LAST).exists() else None
    try:
        train_module(trainer, module, resume=resume)
    except StopRun as stop:
        name = "adapt" if isinstance(config, AdaptConfig) else "pretrain"
        command = f"glf {name} --resume --out {shlex.quote(str(out))}"
        raise rundir.Stopped(f"{stop}; continue with: {command}", stop.signal) from None
    except NotFiniteError as error:
        if out is None:
            raise
        raise UnhealthyRunError(f"{error}; {try_again(out)}") from error
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        raise ConnectionError(
            "another process of this run has ended; the reason is above or in its own log. Continue with --resume"
        ) from error
    return Trained(trainer, probe, throughput, loggers)


def save(
    run: Resolved, inputs: Inputs, module: Pretraining, trained: Trained, out: Path, log: RunLog, **more: Any
) -> dict[str, Any]:
    """Write the backbone and result.json, and log the verdict. ``more`` are further entries of result.json."""
    backbone = module.backbone
    save_backbone(backbone, out / BACKBONE)
    final = trained.probe.latest or trained.probe.measure(module)
    records = read_metrics(out)
    findings: list[Finding] | None = examine(records, ended=True)
    if not findings and too_short(records):
        findings = None
    content = update_result(
        out,
        config=to_dict(run.config),
        method=run.config.method,
        objective={**module.objective.described(), "architecture": run.method.architecture},
        data={
            "name": inputs.images.name,
            "key": inputs.key,
            "images": inputs.total,
            "train": inputs.count,
            "val": len(inputs.val),
            "skipped": rundir.skipped_count(out),
            "classes": list(inputs.classes),
        },
        backbone=backbone.describe(),
        training={**final, **trained.throughput.speed, "lr": scaled_lr(run.config)},
        evaluation=None,  # after --resume, an earlier evaluation was of other weights
        doctor=None if findings is None else [asdict(finding) for finding in findings],
        **provenance(),
        **{"kind": "pretrain", **more},
    )
    trained.loggers.log(final_record(content, trained.trainer.global_step))
    log_verdict(log, final, findings, out)
    if run.config.stop_on_problem:
        refuse_unhealthy(findings, out)
    return content


def announce(log: RunLog, run: Resolved, inputs: Inputs, module: Pretraining) -> None:
    """Log the data, the method, the backbone and the schedule."""
    config, images, backbone = run.config, inputs.images, module.backbone
    height, width = images.size
    terms = " + ".join(f"{weight:g} {term.name}" for weight, term in module.objective.parts)
    architecture = f"  (and by architecture: {run.method.architecture})" if run.method.architecture else ""
    skipped = f", {len(images.skipped)} files skipped" if images.skipped else ""
    log(
        f"data      {images.name}: {inputs.count:,} training images, {len(inputs.val):,} held out for the probe"
        f" ({height} x {width}, {counted(images.channels, 'channel')}{skipped}), {inputs.description}"
    )
    log(f"method    {run.method.name} = {terms}{architecture}")
    parameters = sum(p.numel() for p in backbone.parameters())
    log(f"backbone  {config.backbone}: {parameters:,} parameters, {backbone.width} features")
    steps = module.steps_per_epoch
    log(
        f"training  {counted(config.epochs, 'epoch')} of {counted(steps, 'step')},"
        f" {config.optimizer}, lr {scaled_lr(config):g} ({config.lr:g} x {config.batch_size}/256), seed {config.seed},"
        f" {run.accelerator}"
    )
    if not config.dry_run:
        log(f"run       {config.out}")
