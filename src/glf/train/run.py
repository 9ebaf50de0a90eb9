"""From a configuration to a trained backbone in a run's directory."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import lightning as L
import numpy as np
from rich.console import Console
from torch.utils.data import DataLoader

from glf import methods, result
from glf.config import PretrainConfig, to_dict
from glf.data import sources, views
from glf.data.loader import EpochBatches, bytes_per_image, draw, loader, statistics
from glf.data.masks import read_masks
from glf.data.pack import cache_root
from glf.data.store import Images
from glf.data.workers import described, worker_count
from glf.heap import kept_memory
from glf.method import Method
from glf.nn.backbone import Backbone
from glf.nn.network import Network
from glf.nn.prior import prior_rows
from glf.nn.weights import FILE, load_weights, save_backbone
from glf.train import directory
from glf.train.callbacks import Bar, Clock, Follow, Journal, Metrics, Probe, Refresh
from glf.train.doctor import FILE as METRICS
from glf.train.doctor import examine, read
from glf.train.module import Pretraining
from glf.train.optim import scaled_lr
from glf.train.saving import Checkpoints, StopRun
from glf.train.trainer import accelerator, check_sharing, make_trainer, torch_device
from glf.train.watch import Doctor, verdict
from glf.types import Batch


class Stopped(KeyboardInterrupt):
    """A signal has stopped a run, whose state is saved: says how to go on."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


PROBE_BANK = 5_000  # the online probe's neighbours; evaluation proper uses the whole training set


def pretrain(
    config: PretrainConfig, console: Console | None = None, callbacks: Sequence[L.Callback] = ()
) -> dict[str, Any]:
    """Train; returns what result.json holds. See PretrainConfig for every setting.

    ``callbacks`` are Lightning's, and come after our own. A run that the doctor stops ends in a SickError.
    """
    console = console or Console()
    config = directory.settle(config)
    check_sharing(config)
    method = methods.parse(config.method, config.adc)
    objective = method.build(**config.options)  # before any data is read: a wrong name fails at once
    recipe = views.recipe(config.views or method.views)
    if len(recipe) > 2 and not method.many_views:
        raise ValueError(f"{method.title} is defined for two views: {config.views} has {len(recipe)}")
    images = sources.load(
        config.data,
        "train",
        size=config.image_size,
        root=config.root,
        labels=config.labels,
        store=config.store,
        download=config.download,
    )
    masks = None
    if config.masks is not None:
        if not any(view.mask for view in recipe):
            raise ValueError(f"no view of {config.views or method.views} hides backgrounds: use --views salient")
        masks = read_masks(config.masks, config.data, images, size=config.image_size, store=config.store)
    train, val = split(images, config)
    image_size = config.image_size or crop_size(images)
    backbone = build_backbone(images, image_size, config)
    needs = objective.needs
    if "target" in needs and not images.labelled:
        raise ValueError(f"{method.title} learns from labels, and {images.name} has none")
    EpochBatches(train, config.batch_size, config.seed)  # refuses a batch that the data cannot fill
    device = accelerator(config.device)
    batch_bytes = bytes_per_image(images) * config.batch_size // (config.devices * config.nodes)
    workers = worker_count(
        images, config.workers, gpu=device != "cpu", processes=config.devices, batch_bytes=batch_bytes
    )
    prior = None
    if "prior" in needs:
        Journal(console, None)(f"prior     {config.prior}: features of {len(images):,} images")
        prior = prior_rows(
            config.prior,
            images,
            cache=cache_root() / "prior",
            width=config.prior_width,
            weights=config.prior_weights,
            size=config.prior_size,
            download=config.download,
            device=torch_device(device),
        )

    def make_loader(rank: int, world: int) -> DataLoader[Batch]:
        batches = EpochBatches(train, config.batch_size, config.seed, rank, world)
        return loader(images, batches, prior=prior, masks=masks, workers=workers, pin=device == "gpu")

    method = _as_configured(method, config)
    L.seed_everything(config.seed, verbose=False)
    module = Pretraining(
        network=Network(backbone, method.heads, needs, classes=len(images.classes)),
        objective=objective,
        method=method,
        recipe=recipe,
        image_size=image_size,
        config=config,
        steps_per_epoch=len(train) // config.batch_size,
        make_loader=make_loader,
    )
    with directory.made(config) as out, kept_memory(device == "cpu"):  # nothing can be wrong any more
        journal = Journal(console, out / "train.log" if out else None)
        if out is not None:
            directory.note_skipped(out, images.skipped)
        _announce(journal, config, images, train, val, module, workers)
        return _fit(config, module, images, train, val, journal, callbacks)


def _as_configured(method: Method, config: PretrainConfig) -> Method:
    """The row with the heads and the momentum that the configuration asks for."""
    asked = {
        "projector": config.projector,
        "norm": config.projector_norm,
        "predictor": config.predictor,
        "local": config.local,
        "prototypes": config.prototypes,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return replace(method, heads=replace(method.heads, **given), teacher=config.momentum or method.teacher)


def split(images: Images, config: PretrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """Training rows, and rows held out of them for the probe: fixed by the seed, classes in proportion."""
    rows = np.arange(len(images))
    if config.limit is not None:
        rows = draw(images.targets, config.limit, config.seed)
    count = config.val_images
    if count is None:
        count = min(len(rows) // 10, 5_000) if images.labelled else 0
    val = rows[draw(images.targets[rows], count, config.seed + 1)]
    return np.setdiff1d(rows, val), val


def build_backbone(images: Images, image_size: int, config: PretrainConfig) -> Backbone:
    """The backbone as it is before training: initialised by the seed, or from given weights."""
    mean, std = statistics(images)
    L.seed_everything(config.seed, verbose=False)
    backbone = Backbone(
        config.backbone,
        channels=images.channels,
        image_size=image_size,
        stem=config.stem,
        mean=mean,
        std=std,
    )
    if config.weights is not None:
        load_weights(backbone.body, config.weights)
    return backbone


def crop_size(images: Images) -> int:
    """The crops' side when none is asked for: small images keep theirs, larger ones were stored for 224."""
    side = min(images.size)
    return side if side <= 112 else round(side * 7 / 8)


def _fit(
    config: PretrainConfig,
    module: Pretraining,
    images: Images,
    train: np.ndarray,
    val: np.ndarray,
    journal: Journal,
    more: Sequence[L.Callback],
) -> dict[str, Any]:
    out = None if config.dry_run else config.out
    clock = Clock()
    metrics = Metrics(out / METRICS, clock) if out else None
    bank = train[draw(images.targets[train], min(len(train), PROBE_BANK), config.seed)]
    probe = Probe(images, bank, val, config.probe_every, metrics)
    bar = Bar(journal, clock, probe)
    callbacks: list[L.Callback] = [clock, Refresh(images, train), Follow(), bar]
    if out is not None and metrics is not None:
        checkpoints = Checkpoints(
            out / directory.LAST.parent, probe, minutes=config.save_minutes, every=config.save_every, keep=config.keep
        )
        doctor = Doctor(metrics, journal, out, config.stop_when_sick)
        callbacks = [clock, Refresh(images, train), Follow(), metrics, doctor, probe, bar, checkpoints]
    trainer = make_trainer(config, [*callbacks, *more])
    resume = str(out / directory.LAST) if out and config.resume else None
    try:
        trainer.fit(module, ckpt_path=resume)
    except StopRun as stop:
        run = shlex.quote(str(out))
        raise Stopped(f"{stop}; go on with: glf pretrain --resume --out {run}", stop.signal) from None
    except SystemExit:  # Lightning's answer to a second Ctrl-C, which should reach our caller as what it was
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise
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
        data={
            "name": images.name,
            "key": images.key,
            "images": len(images),
            "train": len(train),
            "val": len(val),
            "skipped": len(images.skipped),
            "classes": list(images.classes),
        },
        backbone=module.network.backbone.describe(),
        training={**final, **clock.speed, "lr": scaled_lr(config)},
        evaluation=None,  # what there is, after --resume, was of other weights
        doctor=[asdict(finding) for finding in found],
        **result.provenance(),
    )
    verdict(journal, final, found, out)
    return content


def _announce(
    journal: Journal,
    config: PretrainConfig,
    images: Images,
    train: np.ndarray,
    val: np.ndarray,
    module: Pretraining,
    workers: int,
) -> None:
    (height, width), method, backbone = images.size, module.method, module.network.backbone
    parameters = sum(p.numel() for p in backbone.parameters())
    terms = " + ".join(f"{weight:g} {term.name}" for weight, term in module.objective.parts)
    beside = f"  (and by architecture: {method.architecture})" if method.architecture else ""
    skipped = f", {len(images.skipped)} files skipped" if images.skipped else ""
    journal(
        f"data      {images.name}: {len(train):,} images to train on, {len(val):,} held out for the probe"
        f" ({height} x {width}, {images.channels} channels{skipped}), {described(images, workers)}"
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
