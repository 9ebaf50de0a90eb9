"""From the options a user gave to the config a run uses: resolved once, immutable afterwards."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from glf import methods, plugins, rundir
from glf.config.training import PretrainConfig, ResolvedPretrainConfig, with_defaults
from glf.data.augment.policies import ViewPolicy, policy
from glf.data.batches import worker_count
from glf.data.datasets import DATASETS
from glf.data.shards.index import is_stream, open_stream
from glf.data.shards.loader import usable_workers
from glf.data.shards.read import ShardStream
from glf.data.source import Source
from glf.data.sources import find_source
from glf.data.tables.find import SUFFIXES
from glf.data.tables.options import is_hub, parse_address
from glf.device import accelerator, memory
from glf.loggers import check_installed
from glf.nn.prior import check_prior
from glf.nn.weights import check_weights
from glf.objective import Method, Objective
from glf.recipes import apply_recipe
from glf.train.auto_config import Choice, adapt_hint, auto_configure, inspect_data


class Resolved(NamedTuple):
    """Everything about a run that is known before an image is decoded."""

    config: ResolvedPretrainConfig
    method: Method  # with the configured heads and EMA momentum
    objective: Objective
    policy: tuple[ViewPolicy, ...]
    accelerator: str
    source: Source | None  # a folder or tar that was listed for the automatic defaults
    shards: ShardStream | None
    choices: list[Choice]
    hint: str | None = None  # a better command for these images


def resolve(config: PretrainConfig) -> Resolved:
    """Resolve and check every option before anything slow happens.

    An explicit option wins over the recipe, the recipe over automatic defaults, and those over fixed defaults. On
    --resume the saved config is used.
    """
    pinned = plugins.pin(config.plugin)
    config = rundir.resolve_directory(replace(config, plugin=pinned))
    plugins.check_recorded(pinned, config.plugin)
    check_installed(config.logger)
    config = apply_recipe(methods.with_plugins(config))
    method = methods.method_of(config)
    objective = method.build(**config.options)
    _check_memory(config)
    source, shards, choices, hint = None, None, list[Choice](), None
    named = config.data in DATASETS
    streamed = not named and is_stream(config.data)
    if not named and not streamed and _is_automatic(config):
        source = find_source(config.data, "train", root=config.root, download=config.download)
        facts = inspect_data(config, source)
        config, choices = auto_configure(config, facts, objective)
        method = methods.method_of(config)  # with the place of LPM
        objective = method.build(**config.options)
        hint = adapt_hint(config, facts)
    resolved = config if isinstance(config, ResolvedPretrainConfig) else with_defaults(config)
    _check_batch(resolved)
    _check_memory(resolved)
    if resolved.weights is not None:
        check_weights(resolved.weights)
    views = policy(resolved.augment or method.augment)
    if len(views) > 2 and not method.many_views:
        raise ValueError(f"{method.title} is defined for two views: {resolved.augment} has {len(views)}")
    if streamed:
        resolved, shards = _resolve_shards(resolved, method, objective.needs)
    elif resolved.epoch_images is not None:
        raise ValueError(f"--epoch-images only applies to shards, not to {resolved.data}: use --max-images")
    elif "prior" in objective.needs:
        check_prior(resolved)
    return Resolved(
        config=resolved,
        method=_with_heads(method, resolved),
        objective=objective,
        policy=views,
        accelerator=accelerator(resolved.device),
        source=source,
        shards=shards,
        choices=choices,
        hint=hint,
    )


def _is_automatic(config: PretrainConfig) -> bool:
    """Image files get automatic defaults, arrays do not; and only without a recipe or a saved config."""
    if isinstance(config, ResolvedPretrainConfig) or not config.auto or config.recipe:
        return False
    if is_hub(config.data):
        return True
    path = Path(os.path.expanduser(parse_address(config.data).base))
    return path.is_dir() or path.suffix.lower() in (".tar", ".csv", *SUFFIXES)


def _with_heads(method: Method, config: ResolvedPretrainConfig) -> Method:
    """Return the method with the configured heads and EMA momentum."""
    given: dict[str, Any] = {
        "projector": config.projector,
        "norm": config.projector_norm,
        "predictor": config.predictor,
        "local": config.local,
        "prototypes": config.prototypes,
        "frozen_prototypes": config.frozen_prototypes,
    }
    given = {name: value for name, value in given.items() if value is not None}
    momentum = config.ema_momentum or method.ema_momentum
    return replace(method, heads=replace(method.heads, **given), ema_momentum=momentum)


def _check_batch(config: ResolvedPretrainConfig) -> None:
    """Refuse a batch that cannot be split evenly among processes and chunks."""
    processes = config.devices * config.nodes
    if config.batch_size % (processes * config.accumulate):
        devices = f"{config.nodes} x {config.devices} devices" if config.nodes > 1 else f"{config.devices} devices"
        raise ValueError(
            f"a global batch of {config.batch_size} cannot be split among {devices} in {config.accumulate} chunks each:"
            f" --batch-size must be a multiple of {processes * config.accumulate}"
        )
    if config.sync_norm and accelerator(config.device) == "cpu":
        raise ValueError("--sync-norm needs GPUs: torch synchronises batch normalisation on GPUs only")


def _check_memory(config: PretrainConfig) -> None:
    """Refuse a batch with two views that, as float32 pixels alone, does not fit into the memory.

    Called before the data are read, and again with what was chosen for them.
    """
    if config.image_size is None or config.batch_size is None:
        return
    images = config.batch_size // (config.devices * config.nodes * config.accumulate)
    needed, there = 2 * images * 3 * config.image_size**2 * 4, memory(accelerator(config.device))
    if needed > there:
        raise ValueError(
            f"the pixels of {images:,} images of {config.image_size:,} px need {needed / 1e9:,.0f} GB, and this machine"
            f" has {there / 1e9:,.0f}: a smaller --image-size or --batch-size, or more --accumulate"
        )


def holds_out(shards: ShardStream, config: ResolvedPretrainConfig) -> bool:
    """Return whether the last shard is held out for the online probe."""
    return len(shards.urls) > 1 and config.val_images != 0


def _resolve_shards(
    config: ResolvedPretrainConfig, method: Method, needs: frozenset[str]
) -> tuple[ResolvedPretrainConfig, ShardStream]:
    """Open the shards, and set the prior and the number of workers from them.

    The number of workers determines the order of the samples, so it is part of the saved config.
    """
    if config.max_images is not None:
        raise ValueError("--max-images does not work with shards: use --epoch-images")
    if needs & {"indices", "instance"}:
        raise ValueError(f"{method.title} keeps a state for every image, which is impossible with shards: use a folder")
    shards = open_stream(config.data, size=config.image_size, labels=config.labels)
    if "target" in needs and not shards.classes:
        raise ValueError(
            f"{method.title} needs labels, and {config.data} has none, or no shards.json that names the classes"
        )
    processes = config.devices * config.nodes
    training = shards.held_out()[0] if holds_out(shards, config) else shards
    workers = worker_count(
        training,
        config.workers,
        gpu=accelerator(config.device) != "cpu",
        processes=config.devices,
        batch_bytes=shards.size.nbytes * config.batch_size // processes,
    )
    config = replace(config, workers=usable_workers(training, workers, processes))
    if "prior" in needs:
        _check_stored_prior(shards, config, method)
        assert shards.prior is not None and shards.prior_width is not None, "checked above"  # noqa: PT018
        config = replace(config, prior=shards.prior, prior_width=shards.prior_width)
    return config, shards


def _check_stored_prior(shards: ShardStream, config: ResolvedPretrainConfig, method: Method) -> None:
    """The prior's features are stored with the samples; other options for it make no sense."""
    if shards.prior_width is None:
        raise ValueError(
            f"{method.title} needs a prior, and {config.data} stores no prior features: write the shards with"
            " glf shard --prior"
        )
    stored = {"prior": shards.prior, "prior_width": shards.prior_width, "prior_weights": None, "prior_size": None}
    default = ResolvedPretrainConfig()
    differing = [n for n, there in stored.items() if getattr(config, n) not in (getattr(default, n), there)]
    if differing:
        flags = ", ".join(f"--{name.replace('_', '-')} {getattr(config, name)}" for name in differing)
        raise ValueError(
            f"{config.data} stores features of the prior {shards.prior}, {shards.prior_width} wide, so {flags}"
            " has no effect: drop it, or write other shards (glf shard --prior)"
        )
