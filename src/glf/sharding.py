"""glf shard: write a data set as shards, with the prior's features of each image if asked."""

from rich.console import Console

from glf.config.inference import ShardConfig
from glf.data import sources
from glf.data.shards.schema import ShardIndex
from glf.data.shards.write import find_indexes, plan_shards, write_shards
from glf.device import torch_device
from glf.nn.prior import check_prior, prior_features
from glf.ui import say


def shard(config: ShardConfig, console: Console | None = None) -> ShardIndex:
    """Write the shards of one split, and return the content of shards.json."""
    console = console or Console()
    find_indexes(config.out)  # refuses what cannot be the output
    if config.prior is not None:
        check_prior(config)
    images = sources.load_images(
        config.data,
        config.split,
        root=config.root,
        labels=config.labels,
        store="decode",  # checks every file and caches none: shards hold the files themselves
        download=config.download,
    )
    prior = None
    if config.prior is not None:
        say(console, f"prior     {config.prior}: features of {len(images):,} images")
        prior = prior_features(config, images, device=torch_device(config.device))
    plan = plan_shards(
        images,
        split=config.split,
        per_shard=config.per_shard,
        seed=config.seed,
        prior=prior,
        prior_name=config.prior or "",
    )
    written = write_shards(images, plan, config.out, prior=prior, overwrite=config.overwrite)
    skipped = f", {len(images.skipped)} files skipped (skipped.txt)" if images.skipped else ""
    kept = f", {plan.shards - written} of them there already" if written < plan.shards else ""
    say(console, f"shards    {config.out}: {plan.images:,} images in {plan.shards:,} shards{kept}{skipped}")
    return plan
