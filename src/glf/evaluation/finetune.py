"""Semi-supervised evaluation (--suite finetune): the whole network is fine-tuned on a fraction of the labels."""

import copy
import json
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional as F

from glf.config.evaluation import FinetuneOptions
from glf.data.augment.augment import augment
from glf.data.augment.policies import ViewPolicy
from glf.data.batches import to_tensor
from glf.data.images import ImageSet, stratified_sample
from glf.evaluation.context import EvalContext, Metric
from glf.nn.backbone import Backbone
from glf.nn.features import encode
from glf.nn.schedule import warmup_cosine
from glf.result import write_file
from glf.runfiles import ARTIFACTS
from glf.types import Batch
from glf.ui import counted, progress

SPATIAL = ViewPolicy(jitter=0, grey=0)  # crops and flips, as in the paper; colours unchanged
HEAD_LR = 10  # learning rate of the classifier, which starts from zero, relative to the backbone's
WEIGHT_DECAY = 1e-4
MOST_EPOCHS = 10  # few labels get at most this many times the epochs


def finetuning(context: EvalContext) -> dict[str, Metric]:
    """Accuracy after fine-tuning on each requested fraction of the labels."""
    if not isinstance(context.encoder, Backbone):
        return {}  # pixels have no weights
    options, train, seed = context.config.finetune, context.target.train, context.config.seed
    if options.finetune_indices is not None:
        samples = {"finetune_given": read_indices(options.finetune_indices, train)}
    else:
        samples = {
            f"finetune_{100 * fraction:g}": draw_indices(
                train, fraction, seed, context.out / ARTIFACTS / f"labels-{100 * fraction:g}-{seed}.json"
            )
            for fraction in options.fractions
        }
    metrics = {}
    for key, indices in samples.items():
        hits = finetune(context.encoder, train, context.target.test, indices, options, seed=seed, device=context.device)
        labels = f"{len(indices):,} labels"
        if options.finetune_indices is None:
            labels = f"{key.removeprefix('finetune_')} % of the labels"
        epochs = epochs_for(len(indices) / len(train), options.finetune_epochs)
        metrics[key] = context.accuracy(hits, f"fine-tuned on {labels} ({counted(epochs, 'epoch')})")
    return metrics


def draw_indices(images: ImageSet, fraction: float, seed: int, path: Path) -> np.ndarray:
    """Draw a stratified sample of the training images, at least one per class, and write its indices to ``path``."""
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction of the labels must be above 0 and at most 1, got {fraction:g}")
    count = max(len(images.classes), round(fraction * len(images)))
    indices = stratified_sample(images.targets, min(count, len(images)), seed)
    content = {"images": images.key, "fraction": fraction, "seed": seed, "rows": indices.tolist()}
    write_file(path, json.dumps(content) + "\n")
    return indices


def read_indices(path: Path, images: ImageSet) -> np.ndarray:
    """Read the indices that an earlier evaluation wrote for the same images."""
    try:
        content = json.loads(path.read_text())
        indices = np.asarray(content["rows"], dtype=np.int64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of image indices written by glf evaluate ({error})") from error
    if content.get("images") != images.key:
        raise ValueError(f"the indices in {path} belong to other images than {images.name}, or to another order")
    return indices


def finetune(
    backbone: Backbone,
    train: ImageSet,
    test: ImageSet,
    indices: np.ndarray,
    options: FinetuneOptions,
    *,
    seed: int = 0,
    device: str = "cpu",
) -> Bool[Tensor, " test"]:
    """Fine-tune a copy of the backbone on these training images; return which test images it classifies correctly.

    SGD with Nesterov momentum 0.9 and weight decay 1e-4; the learning rate follows a cosine from ``finetune_lr`` (for a
    batch of 256) to zero and is ten times as large for the classifier; crops and flips in training, the resized image
    at test time. The paper only says that its augmentations are spatial: the rest is our choice.
    """
    network = nn.Sequential(copy.deepcopy(backbone), nn.Linear(backbone.width, len(train.classes)))
    nn.init.zeros_(network[1].weight)  # type: ignore[arg-type]
    nn.init.zeros_(network[1].bias)  # type: ignore[arg-type]
    network.to(device).train()
    network.to(memory_format=torch.channels_last)
    batch_size = min(options.finetune_batch, len(indices))
    steps = (len(indices) // batch_size) * epochs_for(len(indices) / len(train), options.finetune_epochs)
    lr = options.finetune_lr * batch_size / 256
    groups = [
        {"params": network[0].parameters(), "lr": lr},
        {"params": network[1].parameters(), "lr": HEAD_LR * lr},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(0, steps))
    generator = torch.Generator().manual_seed(seed)
    with progress() as bar:
        task = bar.add_task(f"fine-tuning on {len(indices):,} labels", total=steps)
        order = torch.empty(0, dtype=torch.long)
        for _ in range(steps):
            if len(order) < batch_size:  # an incomplete last batch is dropped, as in pretraining
                order = torch.randperm(len(indices), generator=generator)
            batch, order = indices[np.sort(order[:batch_size].numpy())], order[batch_size:]
            y = torch.from_numpy(train.targets[batch]).to(device)
            pixels = to_tensor(train.pixels[batch]).to(device)
            images = Batch(pixels, y, torch.from_numpy(batch), None)
            x = augment(images, (SPATIAL,), backbone.image_size, generator).x[0]
            loss = F.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            bar.advance(task)
    logits = np.concatenate(list(encode(network, test, size=backbone.image_size, device=device)))
    return torch.from_numpy(logits.argmax(1) == test.targets)


def epochs_for(fraction: float, epochs: int) -> int:
    """Epochs on a fraction of the labels: more for smaller fractions.

    >>> [epochs_for(fraction, 30) for fraction in (1.0, 0.1, 0.05, 0.01, 0.001)]
    [30, 30, 60, 300, 300]
    """
    return round(epochs * min(MOST_EPOCHS, max(1.0, 0.1 / fraction)))
