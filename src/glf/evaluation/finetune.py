"""Semi-supervised learning: the whole network fine-tuned on a part of the labels."""

import copy
import json
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional as F

from glf.config.transfer import FinetuneOptions
from glf.data.augment.augment import augment
from glf.data.augment.policies import ViewPolicy
from glf.data.batches import to_tensor
from glf.data.images import ImageSet, stratified_sample
from glf.evaluation.context import EvalContext, Metric
from glf.nn.backbone import Backbone
from glf.nn.features import encode
from glf.result import write
from glf.train.optim import schedule
from glf.types import Batch

SPATIAL = ViewPolicy(jitter=0, grey=0)  # cropped and flipped, as the paper says; colours stay
HEAD = 10  # the classifier starts from nothing: its rate, relative to the backbone's
DECAY = 1e-4
MOST = 10  # so many times as many passes at most, where labels are few


def labelled_rows(images: ImageSet, fraction: float, seed: int, kept: Path) -> np.ndarray:
    """The rows whose labels are used, drawn by the seed, classes in proportion; written down to be used again."""
    if not 0 < fraction <= 1:
        raise ValueError(f"a share of the labels is above 0 and at most 1, got {fraction:g}")
    count = max(len(images.classes), round(fraction * len(images)))
    rows = stratified_sample(images.targets, min(count, len(images)), seed)
    write(kept, json.dumps({"images": images.key, "fraction": fraction, "seed": seed, "rows": rows.tolist()}) + "\n")
    return rows


def given_rows(path: Path, images: ImageSet) -> np.ndarray:
    """Rows as an earlier evaluation has written them, if they are rows of these images."""
    try:
        content = json.loads(path.read_text())
        rows = np.asarray(content["rows"], dtype=np.int64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of rows that glf has written ({error})") from error
    if content.get("images") != images.key:
        raise ValueError(f"the rows of {path} are of other images than {images.name}, or of the same in another order")
    return rows


def finetune(
    backbone: Backbone,
    train: ImageSet,
    test: ImageSet,
    rows: np.ndarray,
    options: FinetuneOptions,
    *,
    seed: int = 0,
    device: str = "cpu",
) -> Bool[Tensor, " test"]:
    """Which test images the network gets right after learning from these training rows; the backbone stays as it is.

    SGD with Nesterov's momentum 0.9 and weight decay 1e-4; a cosine from ``finetune_lr`` (for a batch of 256) to zero,
    ten times that for the classifier; crops and flips in training, the resized image in the test. The paper says no
    more than that its augmentations are spatial: the rest is ours.
    """
    classes = len(train.classes)
    network = nn.Sequential(copy.deepcopy(backbone), nn.Linear(backbone.width, classes))
    nn.init.zeros_(network[1].weight)  # type: ignore[arg-type]
    nn.init.zeros_(network[1].bias)  # type: ignore[arg-type]
    network.to(device).train()
    network.to(memory_format=torch.channels_last)
    batch = min(options.finetune_batch, len(rows))
    steps = (len(rows) // batch) * passes(len(rows) / len(train), options.finetune_epochs)
    lr = options.finetune_lr * batch / 256
    groups = [
        {"params": network[0].parameters(), "lr": lr},
        {"params": network[1].parameters(), "lr": HEAD * lr},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True, weight_decay=DECAY)
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(0, steps))
    generator = torch.Generator().manual_seed(seed)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"fine-tuning on {len(rows):,} labels", total=steps)
        order = torch.empty(0, dtype=torch.long)
        for _ in range(steps):
            if len(order) < batch:  # what is left of a pass is left out, as in training
                order = torch.randperm(len(rows), generator=generator)
            some, order = rows[np.sort(order[:batch].numpy())], order[batch:]
            x, y = _views(train, some, backbone.image_size, generator, device)
            loss = F.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            course.step()
            bar.advance(task)
    logits = np.concatenate(list(encode(network, test, size=backbone.image_size, device=device)))
    return torch.from_numpy(logits.argmax(1) == test.targets)


def passes(fraction: float, epochs: int) -> int:
    """Passes over the labels: more where there are fewer of them.

    >>> [passes(fraction, 30) for fraction in (1.0, 0.1, 0.05, 0.01, 0.001)]
    [30, 30, 60, 300, 300]
    """
    return round(epochs * min(MOST, max(1.0, 0.1 / fraction)))


def _views(
    images: ImageSet, rows: np.ndarray, size: int, generator: torch.Generator, device: str
) -> tuple[Tensor, Tensor]:
    target = torch.from_numpy(images.targets[rows]).to(device)
    pixels = to_tensor(images.pixels[rows]).to(device)
    batch = Batch(pixels, target, torch.from_numpy(rows), None)
    return augment(batch, (SPATIAL,), size, generator).x[0], target


def finetuned(case: EvalContext) -> dict[str, Metric]:
    """Accuracy after fine-tuning on each share of the labels that is asked for."""
    if not isinstance(case.encoder, Backbone):
        return {}  # pixels have nothing to tune
    options, train, seed = case.config.finetune, case.target.train, case.config.seed
    if options.finetune_indices is not None:
        chosen = {"finetune_given": given_rows(options.finetune_indices, train)}
    else:
        kept = case.out / "artifacts"
        chosen = {
            f"finetune_{100 * share:g}": labelled_rows(train, share, seed, kept / f"labels-{100 * share:g}-{seed}.json")
            for share in options.fractions
        }
    found = {}
    for key, rows in chosen.items():
        right = finetune(case.encoder, train, case.target.test, rows, options, seed=seed, device=case.place)
        share = f"{len(rows):,} labels" if options.finetune_indices else f"{key.partition('_')[2]} % of the labels"
        epochs = passes(len(rows) / len(train), options.finetune_epochs)
        found[key] = case.accuracy(right, f"fine-tuned on {share} ({epochs} epochs)")
    return found
