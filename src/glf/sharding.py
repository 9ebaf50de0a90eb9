"""glf shard: a source of images -> a folder of shards, with the prior's rows beside the images if that is asked for."""

from rich.console import Console

from glf.config.inference import ShardConfig
from glf.data import sources
from glf.data.image_cache import cache_root
from glf.data.shards.index import ShardIndex
from glf.data.shards.write import plan_shards, write_shards
from glf.device import torch_device
from glf.nn.prior import check_prior, prior_rows


def shard(config: ShardConfig, console: Console | None = None) -> ShardIndex:
    """Write the shards of one split; returns what shards.json holds."""
    console = console or Console()
    if config.prior is not None:
        check_prior(config.prior, config.prior_weights, download=config.download)
    images = sources.load(
        config.data,
        config.split,
        root=config.root,
        labels=config.labels,
        store="decode",  # every file is looked at and none is stored: its bytes are what goes into the shards
        download=config.download,
    )
    prior = None
    if config.prior is not None:
        console.print(f"prior     {config.prior}: features of {len(images):,} images", highlight=False)
        prior = prior_rows(
            config.prior,
            images,
            cache=cache_root() / "prior",
            width=config.prior_width,
            weights=config.prior_weights,
            size=config.prior_size,
            download=config.download,
            device=torch_device(config.device),
        )
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
    console.print(
        f"shards    {config.out}: {plan.images:,} images in {plan.shards:,} shards{kept}{skipped}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return plan
