"""Augmentation in images per second, two views each: glf, lightly, torchvision and kornia."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glf.config.training import ResolvedPretrainConfig
from glf.data.augment import augment as A
from glf.data.augment.policies import POLICIES, ViewPolicy
from glf.malloc import retain_freed_memory
from glf.types import Batch
from speed.timing import Row, interleaved, processes

BATCH = 256
DEFAULT = ResolvedPretrainConfig().colours
RECIPE = {"without blur": "wmse", "with blur": "symmetric"}


def ours(pixels: np.ndarray, recipe: tuple[ViewPolicy, ...], form: A.Colour, size: int) -> Callable[[], object]:
    images = torch.tensor(pixels).permute(0, 3, 1, 2)
    generator, rows = torch.Generator().manual_seed(0), torch.arange(len(images))
    batch = Batch(images, rows, rows, None)
    return lambda: A.augment(batch, recipe, size, generator, form)


def lightly(view: ViewPolicy, size: int) -> Callable[..., object]:
    from lightly.transforms import SimCLRTransform

    return SimCLRTransform(
        input_size=size,
        cj_prob=view.jitter,
        cj_bright=view.brightness,
        cj_contrast=view.contrast,
        cj_sat=view.saturation,
        cj_hue=view.hue,
        min_scale=view.crop_area[0],
        random_gray_scale=view.grey,
        gaussian_blur=view.blur,
        normalize=None,  # done by the backbone
    )


def torchvision(view: ViewPolicy, size: int) -> Callable[[Tensor], Tensor]:
    """Applied per image: on a batch it would use the same random numbers for all images."""
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(size, scale=view.crop_area, antialias=True),
        v2.RandomHorizontalFlip(view.flip),
        v2.RandomApply([v2.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)], view.jitter),
        v2.RandomGrayscale(view.grey),
        *([v2.RandomApply([v2.GaussianBlur(_kernel(size), (0.1, 2.0))], view.blur)] if view.blur else []),
        v2.ToDtype(torch.float32, scale=True),
    ]
    return v2.Compose(steps)


def kornia(view: ViewPolicy, size: int) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import kornia.augmentation as K

    jitter = K.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue, p=view.jitter)
    blur = [K.RandomGaussianBlur((_kernel(size),) * 2, (0.1, 2.0), p=view.blur)] if view.blur else []
    crop = K.RandomResizedCrop((size, size), scale=view.crop_area)
    return torch.nn.Sequential(crop, K.RandomHorizontalFlip(p=view.flip), jitter, K.RandomGrayscale(p=view.grey), *blur)


def _kernel(size: int) -> int:
    return 2 * max(1, size // 20) + 1


def at_32(pixels: np.ndarray) -> list[Row]:
    """One thread next to lightly and torchvision, two next to kornia; fused and exact colours."""
    from PIL import Image

    rows: list[Row] = []
    some = pixels[:BATCH]
    pictures, tensors = [Image.fromarray(p) for p in some], torch.tensor(some).permute(0, 3, 1, 2)
    few = BATCH // 4  # fewer images for the slow ones
    for words, name in RECIPE.items():
        recipe = POLICIES[name]
        their, tv, k = lightly(recipe[0], 32), torchvision(recipe[0], 32), kornia(recipe[0], 32)
        one = {
            "fused": (ours(some, recipe, "fused", 32), BATCH),
            "exact": (ours(some, recipe, "exact", 32), BATCH),
            "lightly": (lambda t=their: [t(p) for p in pictures[:few]], few),
            "torchvision v2": (lambda t=tv: [t(x) for x in tensors[:few] for _ in range(2)], few),
        }
        speed = _speeds(one, threads=1)
        limit = 6 if recipe[0].blur else 10
        for form in ("exact", "fused"):
            target = limit if form == DEFAULT else None
            for peer in ("lightly", "torchvision v2"):
                part, asked = "augmentation, 32 px, one thread", target if peer == "lightly" else None
                what = f"{form}, {words}"
                rows.append(Row.of_speeds(part, what, speed[form], speed[peer], to=peer, at_least=asked, digits=0))
        two = {form: one[form] for form in ("exact", "fused")}
        two["kornia"] = (lambda t=k: [t(tensors.float() / 255) for _ in range(2)], BATCH)
        speed = _speeds(two, threads=2)
        rows += [
            Row.of_speeds(
                "augmentation, 32 px, two threads",
                f"{form}, {words}",
                speed[form],
                speed["kornia"],
                to="kornia",
                at_least=4 if form == DEFAULT else None,
                digits=0,
            )
            for form in ("exact", "fused")
        ]
    return rows


def _speeds(cases: dict[str, tuple[Callable[[], object], int]], threads: int) -> dict[str, float]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with retain_freed_memory():
            seconds = interleaved({name: case for name, (case, _) in cases.items()})
    finally:
        torch.set_num_threads(before)
    return {name: cases[name][1] / value for name, value in seconds.items()}


def apart(pixels: np.ndarray) -> list[Row]:
    """Difference between fused and exact colours on real images, in 8-bit steps."""
    rows = []
    for name in RECIPE.values():
        fused, exact = (torch.cat(ours(pixels[:2000], POLICIES[name], form, 32)().x) for form in ("exact", "fused"))
        distance = 255 * (fused - exact).abs().flatten()
        share = float((distance > 2.55).float().mean())
        rows.append(
            Row(
                part="fused against exact colours, 32 px",
                what=f"policy {name}",
                value=f"mean distance {float(distance.mean()):.2f} of 255, median {float(distance.median()):.2f}; "
                f"{100 * share:.0f} % of the values differ by more than 1 %",
            )
        )
    return rows


def by_images(pixels: np.ndarray) -> dict[str, dict[int, float]]:
    """Seconds for two views, by number of images."""
    sizes, forms = (64, 128, 256, 512, 1024), ("fused", "exact")
    with retain_freed_memory():
        return {
            form: {n: interleaved({"": ours(pixels[:n], POLICIES["wmse"], form, 32)}, 5)[""] for n in sizes}
            for form in forms
        }


def from_photos(folder: Path, cache: Path) -> list[Row]:
    """224 px from JPEG files with two workers: decoded or cached by glf, and read by lightly's data set.

    The work is not quite the same: glf crops both views from the central square at 256 px, lightly crops each view from
    the whole photo.
    """
    arguments = ["speed.augmentation", str(folder), str(cache)]
    words = {"decode": "decoded by two workers", "pack": "cached before, read by two workers"}
    ours = {f"{form}, {what}": [*arguments, how, form] for how, what in words.items() for form in ("exact", "fused")}
    cases = {**ours, "lightly": [*arguments, "lightly", ""]}
    speed = {name: values[0] for name, values in processes(cases, 5).items()}
    return [
        Row.of_speeds(
            "augmentation, 224 px from a folder of JPEG photos, two workers",
            name,
            speed[name],
            speed["lightly"],
            to="lightly",
            at_least=2 if name == f"{DEFAULT}, {words['decode']}" else None,
        )
        for name in ours
    ]


def _photos(folder: Path, cache: Path, how: str, form: A.Colour, batch: int = 28) -> float:
    """Images per second of a pass over the folder, augmented and ready for the network, after a warm-up pass."""
    import os
    import time

    os.environ["GLF_CACHE"] = str(cache)
    recipe = POLICIES["symmetric"]
    if how == "lightly":
        from lightly.data import LightlyDataset
        from torch.utils.data import DataLoader

        data = LightlyDataset(str(folder), transform=lightly(recipe[0], 224))
        loader = DataLoader(data, batch_size=batch, num_workers=2, persistent_workers=True, drop_last=True)
        passes = (sum(len(views[0]) for views, _, _ in loader) for _ in range(2))
    else:
        from glf.data import sources
        from glf.data.batches import EpochBatches
        from glf.data.batches import image_loader as ours_loader

        images = sources.load_images(str(folder), "train", size=224, store=how, progress=False)
        batches = ours_loader(images, EpochBatches(np.arange(len(images)), batch, 0), prior=None, workers=2)
        generator = torch.Generator().manual_seed(0)
        passes = (sum(len(A.augment(b, recipe, 224, generator, form).x[0]) for b in batches) for _ in range(2))
    with retain_freed_memory():
        next(passes)
        start = time.perf_counter()
        return sum(passes) / (time.perf_counter() - start)


if __name__ == "__main__":
    print([_photos(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])])
