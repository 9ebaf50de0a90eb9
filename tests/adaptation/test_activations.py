"""Activations of the trunk: computed once, resumed after a kill, read by epoch, image and view."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glf.adaptation.activations import (
    ActivationReader,
    EpochViews,
    activation_cache,
    activation_loader,
    batch_views,
    compute_activations,
    free_disk,
    planned_views,
)
from glf.config.training import ResolvedAdaptConfig
from glf.data.augment.policies import policy
from glf.data.images import ImageSet
from glf.data.sources import load_images
from glf.nn.backbone import Backbone
from glf.nn.cut import Trunk, cut

MILD = policy("mild")
CONFIG = ResolvedAdaptConfig(image_size=16, views=4)
COUNT = 150  # images: two whole batches and a part of one


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load_images("fashion-mini").select(np.arange(COUNT))


def new_trunk(seed: int = 0) -> Trunk:
    torch.manual_seed(seed)
    return cut(Backbone("small_resnet", channels=1, image_size=16, mean=(0.3,), std=(0.35,)).eval()).trunk


class Count:
    """A number that all copies of a trunk share."""

    seen = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "Count":
        return self


class Counted(Trunk):
    """A trunk that counts the images it sees, and can fail at one of them."""

    def __init__(self, fail_after: int | None = None) -> None:
        torch.nn.Module.__init__(self)
        vars(self).update(vars(new_trunk()))
        self.count, self.fail_after = Count(), fail_after

    @property
    def seen(self) -> int:
        return self.count.seen

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 2:  # one or two are no images of ours: they tell the shape
            self.count.seen += len(x)
            if self.fail_after is not None and self.seen > self.fail_after:
                raise KeyboardInterrupt
        return super().forward(x)


def computed(trunk: Trunk, images: ImageSet, folder: Path, config: ResolvedAdaptConfig = CONFIG) -> np.ndarray:
    cached = activation_cache(folder, trunk, images, MILD, config)
    return compute_activations(cached, trunk, images, MILD, config, "cpu")


def test_the_first_column_is_the_image_as_it_is_and_the_others_are_its_views(images: ImageSet, tmp_path: Path) -> None:
    trunk = new_trunk()
    found = computed(trunk, images, tmp_path)
    assert found.shape == (COUNT, 5, 128, 2, 2)
    assert found.dtype == np.float16
    for start, stop in ((0, 64), (128, 150)):  # the views of a batch are seeded by its first image
        x = batch_views(images.pixels[start:stop], MILD, 16, 2, "fused", seed=(0, start), device="cpu")
        assert len(x) == 5
        for column, view in enumerate(x):
            with torch.no_grad():
                expected = trunk(view).numpy()
            np.testing.assert_allclose(found[start:stop, column], expected, rtol=1e-2, atol=1e-3)
    flat = found.reshape(COUNT, 5, -1).astype(np.float32)
    assert (np.ptp(flat, axis=1).max(1) > 0.01).all(), "no two views are the same"


def test_activations_are_computed_once(images: ImageSet, tmp_path: Path) -> None:
    first, second = Counted(), Counted()
    found = computed(first, images, tmp_path)
    assert first.seen == 5 * COUNT
    assert np.array_equal(computed(second, images, tmp_path), found)
    assert second.seen == 0


def test_after_a_kill_the_rest_is_computed_and_the_bytes_are_the_same(images: ImageSet, tmp_path: Path) -> None:
    whole = computed(new_trunk(), images, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        computed(Counted(fail_after=5 * 64 + 100), images, tmp_path / "killed")
    again = Counted()
    found = computed(again, images, tmp_path / "killed")
    assert again.seen == 5 * (COUNT - 64)
    assert found.tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"seed": 1}, False),
        ({"views": 6}, False),
        ({"image_size": 24}, False),
        ({"colours": "exact"}, False),
        ({"augment": "gentle"}, False),
        ({"weights": 1}, False),
        ({"mean": 0.5}, False),
        ({"images": 100}, False),
        ({"batch_size": 8, "lr": 0.1, "epochs": 3, "l2sp": 1.0, "head_lr": 1.0}, True),
    ],
    ids=str,
)
def test_another_seed_policy_size_or_trunk_has_another_cache(
    images: ImageSet, tmp_path: Path, changes: dict[str, Any], same: bool
) -> None:
    own = activation_cache(tmp_path, new_trunk(), images, MILD, CONFIG).folder
    assert activation_cache(tmp_path, new_trunk(), images, MILD, CONFIG).folder == own
    values = dict(changes)
    trunk = new_trunk(values.pop("weights", 0))
    trunk.mean = trunk.mean.new_full(trunk.mean.shape, values.pop("mean", 0.3))
    some = images.select(np.arange(values.pop("images"))) if "images" in values else images
    config = replace(CONFIG, **values)
    other = activation_cache(tmp_path, trunk, some, policy(config.augment), config).folder
    assert (other == own) == same


def test_activations_beyond_half_precision_are_refused(images: ImageSet, tmp_path: Path) -> None:
    trunk = new_trunk()
    trunk.std = trunk.std / 1e9
    with pytest.raises(ValueError, match="do not fit into float16: use --views 0"):
        computed(trunk, images, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- one epoch


def epoch(batches: EpochViews, number: int = 0) -> list[np.ndarray]:
    batches.set_epoch(number)
    return list(batches)


def epoch_views(rank: int = 0, world: int = 1, seed: int = 0) -> EpochViews:
    return EpochViews(np.arange(10, 60), 8, seed, rank, world, views=6, kinds=2)


def test_an_epoch_has_every_image_once_with_one_view_of_each_kind() -> None:
    rows = np.concatenate(epoch(epoch_views()))
    assert rows.shape == (48, 3)
    assert len(set(rows[:, 0])) == 48
    assert set(rows[:, 0]) <= set(range(10, 60))
    assert set(rows[:, 1]) == {1, 3, 5}, "column 0 is the image as it is"
    assert set(rows[:, 2]) == {2, 4, 6}
    pairs = set(map(tuple, rows[:, 1:]))
    assert len(pairs) == 9, "any view of one kind with any of the other"


def test_an_epoch_with_the_images_as_they_are() -> None:
    """They come first, and do not change which views are read."""
    clean = EpochViews(np.arange(10, 60), 8, 0, 0, 1, views=6, kinds=2, clean=True)
    rows, without = np.concatenate(epoch(clean)), np.concatenate(epoch(epoch_views()))
    assert not rows[:, 1].any()
    assert np.array_equal(rows[:, [0, 2, 3]], without)


def test_epochs_and_seeds_differ_and_can_be_repeated() -> None:
    first = np.concatenate(epoch(epoch_views()))
    assert np.array_equal(np.concatenate(epoch(epoch_views())), first)
    assert not np.array_equal(np.concatenate(epoch(epoch_views(), 1)), first)
    assert not np.array_equal(np.concatenate(epoch(epoch_views(seed=1))), first)


def test_an_epoch_resumes_in_its_middle() -> None:
    whole, batches = epoch(epoch_views(), 2), epoch_views()
    batches.begin(2, 4)
    assert [rows.tolist() for rows in batches] == [rows.tolist() for rows in whole[4:]]
    assert [rows.tolist() for rows in epoch(batches, 3)] == [rows.tolist() for rows in epoch(epoch_views(), 3)]


@pytest.mark.parametrize("first", [0, 2])
def test_two_processes_have_the_halves_of_what_one_has(first: int) -> None:
    every = []
    for rank, world in ((0, 1), (0, 2), (1, 2)):
        batches = epoch_views(rank, world)
        batches.begin(0, first)
        every.append(list(batches))
    whole, *halves = every
    assert len(whole) == 6 - first
    for both, *parts in zip(whole, *halves, strict=True):
        assert np.array_equal(np.concatenate(parts), both)


def test_a_batch_has_the_activations_of_its_rows(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).normal(size=(60, 7, 3, 2)).astype(np.float16)
    (tmp_path / "a").write_bytes(stored.tobytes())
    mapped = np.memmap(tmp_path / "a", np.float16, "c", shape=stored.shape)
    prior = np.arange(120, dtype=np.float32).reshape(60, 2)
    reader = ActivationReader(mapped, np.arange(60) % 5, prior)
    for read in (reader, pickle.loads(pickle.dumps(reader))):
        loader = activation_loader(read, epoch_views(), workers=0, pin=False)
        for batch, rows in zip(loader, epoch_views(), strict=True):
            assert batch.images.shape == (8, 2, 3, 2)
            for i, (image, one, two) in enumerate(rows):
                assert np.array_equal(batch.images[i], stored[image][[one, two]])
            assert batch.indices.tolist() == rows[:, 0].tolist()
            assert batch.target.tolist() == (rows[:, 0] % 5).tolist()
            assert np.array_equal(batch.prior, prior[rows[:, 0]])
    assert len(pickle.dumps(reader)) < stored.nbytes, "a mapped file is sent as its name"


# --- how many views


@pytest.mark.parametrize(
    ("given", "images", "kinds", "free", "views", "why"),
    [
        (None, 1_000, 2, 10**12, 8, "8 views of each image, 0.1 GB"),
        (None, 100_000, 2, 10**12, 4, "4 views of each image, 5.0 GB: there are 100,000 images"),
        (None, 300_000, 2, 10**12, 0, "none, the trunk runs in every epoch: there are 300,000 images"),
        (None, 1_000, 3, 10**12, 6, "6 views of each image, 0.1 GB"),
        (None, 1_000, 2, 80_000_000, 2, "2 views of each image, 0.0 GB: the disk has 0.1 GB free"),
        (6, 100_000, 2, 10**12, 6, "6 views of each image, 7.0 GB"),
        (None, 1_000, 2, 1_000, 0, "none, the trunk runs in every epoch: the disk has 0.0 GB free"),
        (7, 1_000, 2, 10**12, 6, "6 views of each image, 0.1 GB"),
        (0, 1_000, 2, 10**12, 0, "none, the trunk runs in every epoch"),
        (1, 1_000, 2, 10**12, 0, "none, the trunk runs in every epoch"),
    ],
)
def test_views_are_planned_for_disk_and_time(
    given: int | None, images: int, kinds: int, free: int, views: int, why: str
) -> None:
    assert planned_views(given, images, kinds, 10_000, free) == (views, why)
    assert images * (views + 1) * 10_000 <= free or views == 0


def test_the_free_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert free_disk(tmp_path / "not" / "yet") == pytest.approx(free_disk(tmp_path), rel=0.05)


def test_views_that_were_asked_for_and_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"6 views of 1,000 images need 0.1 GB, and half of the free disk is 0.0 GB"):
        planned_views(6, 1_000, 2, 10_000, 1_000)
