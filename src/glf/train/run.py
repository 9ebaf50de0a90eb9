"""From a configuration to a trained backbone in a run's directory."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import lightning as L
from rich.console import Console

from glf import methods, result, rundir
from glf.config.base import to_dict
from glf.config.training import PretrainConfig, ResolvedPretrainConfig
from glf.data.augment import policies
from glf.data.images import stratified_sample
from glf.device import accelerator, seed_everything, torch_device
from glf.distributed import is_lost_peer
from glf.health.examine import METRICS as METRICS
from glf.health.examine import examine, read
from glf.malloc import retain_freed_memory
from glf.nn.network import Network
from glf.nn.prior import check_prior
from glf.nn.weights import FILE, build_backbone, check_weights, crop_size, save_backbone
from glf.objective import Method
from glf.train.auto_config import auto_configure
from glf.train.callbacks import Metrics, Probe, RefreshClusters, RunLog, Throughput, UpdateTeacher
from glf.train.checkpointing import Checkpoints, DataFingerprint, Stopped, StopRun
from glf.train.inputs import Asked, Feed, is_streamed, stored, streamed
from glf.train.module import Pretraining
from glf.train.monitor import HealthMonitor, log_verdict
from glf.train.optim import scaled_lr
from glf.train.progress import Bar, StepTime, benchmark_steps, epochs, estimate
from glf.train.trainer import check_sharing, fit, make_trainer

PROBE_BANK = 5_000  # the online probe's neighbours; evaluation proper uses the whole training set


def pretrain(
    config: PretrainConfig, console: Console | None = None, callbacks: Sequence[L.Callback] = ()
) -> dict[str, Any]:
    """Train; returns what result.json holds. See PretrainConfig for every setting.

    ``callbacks`` are Lightning's, and come after our own. A run that the doctor stops ends in a SickError.
    """
    console = console or Console()
    asked_for = rundir.resolve_directory(config)
    method = methods.parse(asked_for.method, asked_for.adc)
    objective = method.build(**asked_for.options)  # before any data is read: a wrong name fails at once
    config, choices, epochs_open, found = auto_configure(asked_for, objective.needs)
    check_sharing(config)
    if config.weights is not None:
        check_weights(config.weights)
    if "prior" in objective.needs and not is_streamed(config):  # shards have the rows of theirs
        check_prior(config.prior, config.prior_weights, download=config.download)
    recipe = policies.policy(config.augment or method.augment)
    if len(recipe) > 2 and not method.many_views:
        raise ValueError(f"{method.title} is defined for two views: {config.augment} has {len(recipe)}")
    device = accelerator(config.device)
    say = RunLog(console, None)
    for choice in choices:
        say(str(choice))
    asked = Asked(
        title=method.title,
        needs=objective.needs,
        augment=config.augment or method.augment,
        accelerator=device,
        place=torch_device(device),
        say=say,
    )
    data = streamed(config, asked) if is_streamed(config) else stored(config, asked)
    config = replace(config, **data.settled)
    image_size = config.image_size or crop_size(data.images)
    backbone = build_backbone(data.images, image_size, config, data.normal)
    if "target" in objective.needs and not data.labelled:
        raise ValueError(f"{method.title} learns from labels, and {config.data} has none")
    make_loader = data.prepare()
    method = _configured_method(method, config)
    seed_everything(config.seed)
    module = Pretraining(
        network=Network(backbone, method.heads, objective.needs, classes=len(data.classes)),
        objective=objective,
        method=method,
        recipe=recipe,
        image_size=image_size,
        config=config,
        steps_per_epoch=data.count // config.batch_size,
        make_loader=make_loader,
    )
    before = [str(choice) for choice in choices]
    if found is not None:
        pace = _pace(config, module, data)
        if epochs_open:
            last = epochs(module.steps_per_epoch, pace, device)
            config = module.config = replace(config, epochs=last.value)
            before.append(str(last))
            say(before[-1])
        if pace is not None:
            before.append(estimate(config.epochs, module.steps_per_epoch, pace))
            say(before[-1])
        seed_everything(config.seed)
    with rundir.create(config) as out, retain_freed_memory(device == "cpu"):  # nothing can be wrong any more
        journal = RunLog(console, out / "train.log" if out else None)
        for line in before:
            journal.note(line)
        if out is not None:
            rundir.note_skipped(out, data.images.skipped, keep=data.streamed and config.resume)
        _announce(journal, config, data, module)
        return _fit(config, module, data, journal, callbacks)


def _pace(config: ResolvedPretrainConfig, module: Pretraining, data: Feed) -> StepTime | None:
    """How fast a few steps are; not known of several processes, or of a network that is compiled first."""
    if config.devices * config.nodes > 1 or config.compile:
        return None
    return benchmark_steps(config, module, _probe(config, data, None))


def _probe(config: ResolvedPretrainConfig, data: Feed, metrics: Metrics | None) -> Probe:
    bank = data.train[stratified_sample(data.images.targets[data.train], min(len(data.train), PROBE_BANK), config.seed)]
    return Probe(data.images, bank, data.val, config.probe_every, metrics)


def _configured_method(method: Method, config: ResolvedPretrainConfig) -> Method:
    """The row with the heads and the momentum that the configuration asks for."""
    asked = {
        "projector": config.projector,
        "norm": config.projector_norm,
        "predictor": config.predictor,
        "local": config.local,
        "prototypes": config.prototypes,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return replace(
        method, heads=replace(method.heads, **given), ema_momentum=config.ema_momentum or method.ema_momentum
    )


def _fit(
    config: ResolvedPretrainConfig,
    module: Pretraining,
    data: Feed,
    journal: RunLog,
    more: Sequence[L.Callback],
) -> dict[str, Any]:
    images, train, val = data.images, data.train, data.val
    out = None if config.dry_run else config.out
    clock = Throughput()
    metrics = Metrics(out / METRICS, clock) if out else None
    probe = _probe(config, data, metrics)
    bar = Bar(journal, clock, probe)
    same = DataFingerprint(data, journal)
    callbacks: list[L.Callback] = [same, RefreshClusters(images, train), UpdateTeacher(), bar]
    if out is not None and metrics is not None:
        doctor = HealthMonitor(metrics, journal, out, config.stop_on_problem)
        checkpoints = Checkpoints(
            out / rundir.LAST.parent,
            probe,
            doctor,
            minutes=config.save_minutes,
            every=config.save_every,
            keep=config.keep,
        )
        callbacks = [same, RefreshClusters(images, train), UpdateTeacher(), metrics, doctor, probe, bar, checkpoints]
    trainer = make_trainer(config, [*callbacks, *more, clock], steps=2 if config.dry_run else -1)
    try:
        fit(trainer, module, out / rundir.LAST if out and config.resume else None)
    except StopRun as stop:
        run = shlex.quote(str(out))
        raise Stopped(f"{stop}; go on with: glf pretrain --resume --out {run}", stop.signal) from None
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        raise ConnectionError(
            "another process of this run has ended, and says above or in its own log why; go on with --resume"
        ) from error
    if out is None:
        journal("dry run: two steps taken, nothing written")
        return {}
    if not trainer.is_global_zero:
        return {}
    save_backbone(module.network.backbone, out / FILE)
    final = probe.latest or probe.measure(module)
    found = examine(read(out))
    content = result.update(
        out,
        kind="pretrain",
        config=to_dict(config),
        method=config.method,
        objective={**module.objective.described(), "architecture": module.method.architecture},
        data={
            "name": images.name,
            "key": data.key,
            "images": data.total,
            "train": data.count,
            "val": len(val),
            "skipped": rundir.skipped_count(out),
            "classes": list(data.classes),
        },
        backbone=module.network.backbone.describe(),
        training={**final, **clock.speed, "lr": scaled_lr(config)},
        evaluation=None,  # what there is, after --resume, was of other weights
        doctor=[asdict(finding) for finding in found],
        **result.provenance(),
    )
    log_verdict(journal, final, found, out)
    return content


def _announce(journal: RunLog, config: ResolvedPretrainConfig, data: Feed, module: Pretraining) -> None:
    images = data.images
    (height, width), method, backbone = images.size, module.method, module.network.backbone
    parameters = sum(p.numel() for p in backbone.parameters())
    terms = " + ".join(f"{weight:g} {term.name}" for weight, term in module.objective.parts)
    beside = f"  (and by architecture: {method.architecture})" if method.architecture else ""
    skipped = f", {len(images.skipped)} files skipped" if images.skipped else ""
    journal(
        f"data      {images.name}: {data.count:,} images to train on, {len(data.val):,} held out for the probe"
        f" ({height} x {width}, {images.channels} channels{skipped}), {data.words}"
    )
    journal(f"method    {method.name} = {terms}{beside}")
    journal(f"backbone  {config.backbone}: {parameters:,} parameters, {backbone.width} features")
    journal(
        f"training  {config.epochs} epochs of {module.steps_per_epoch} steps, {config.optimizer},"
        f" lr {scaled_lr(config):g} ({config.lr:g} x {config.batch_size}/256), seed {config.seed},"
        f" {accelerator(config.device)}"
    )
    if not config.dry_run:
        journal(f"run       {config.out}")
