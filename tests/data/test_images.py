"""Image sets: fields, selection, storage in memory, stratified samples and channel statistics."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from glf.data.images import ImageSet, statistics, stratified_sample, to_memory
from glf.data.sources import load_images

Array = NDArray[np.uint8]


def small(**changes: object) -> ImageSet:
    fields = {
        "name": "a",
        "pixels": np.arange(5 * 4 * 6 * 3, dtype=np.uint8).reshape(5, 4, 6, 3),
        "targets": np.array([0, 1, 0, 1, 1]),
        "classes": ("x", "y"),
        "key": "0123456789abcdef",
    }
    return ImageSet(**(fields | changes))  # type: ignore[arg-type]


def test_images_describe_themselves() -> None:
    images = small()
    assert (len(images), images.size, images.channels, images.labelled) == (5, (4, 6), 3, True)
    assert not small(targets=np.array([0, 1, -1, 1, 0])).labelled
    assert not small(classes=("x",)).labelled
    assert images != small()  # by identity, without comparing arrays
    assert len({images, small()}) == 2


def test_arrays_of_another_shape_or_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"uint8 \(5, 4, 6\)"):
        small(pixels=np.zeros((5, 4, 6), np.uint8))
    with pytest.raises(ValueError, match=r"\(5, 4, 6, 2\)"):
        small(pixels=np.zeros((5, 4, 6, 2), np.uint8))
    with pytest.raises(ValueError, match=r"int64 \(4,\)"):
        small(targets=np.zeros(4, np.int64))


def test_select() -> None:
    images = small()
    chosen = images.select(np.array([3, 0, 3]))
    np.testing.assert_array_equal(chosen.pixels, images.pixels[[3, 0, 3]])
    assert chosen.targets.tolist() == [1, 0, 1]
    assert np.shares_memory(images.select(np.arange(1, 4)).pixels, images.pixels)
    np.testing.assert_array_equal(images.select(np.arange(1, 4)).pixels, images.pixels[1:4])
    np.testing.assert_array_equal(images.select(images.targets == 1).targets, [1, 1, 1])
    assert len(images.select(np.array([], np.int64))) == 0
    keys = [images.key] + [images.select(np.array(r)).key for r in ([0, 1], [1, 0], [0], range(5))]
    assert len(set(keys)) == 5
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)
    assert images.select(np.array([0, 1], np.int32)).key == images.select(np.array([0, 1])).key
    for bad in ([5], [-1]):
        with pytest.raises(ValueError, match=r"indices must be in 0\.\.4, got"):
            images.select(np.array(bad))
    with pytest.raises((ValueError, TypeError)):
        images.select(np.array([0.5]))


def test_small_sets_are_read_into_memory(
    classes: Path, tmp_path: Path, colour: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", colour)
    for source, nbytes in ((classes, 12 * 28 * 28), (tmp_path / "a.npy", colour.nbytes)):
        monkeypatch.setattr("glf.data.images.IN_MEMORY", nbytes)
        small = load_images(str(source))
        monkeypatch.setattr("glf.data.images.IN_MEMORY", nbytes - 1)
        large = load_images(str(source))
        assert (small.storage, large.storage) == ("in memory", "memory-mapped")
        assert not small.pixels.flags.writeable  # type: ignore[union-attr]
        np.testing.assert_array_equal(small.pixels[:], large.pixels[:])
        assert small.key == large.key
        assert large.select(np.arange(2, 9)).storage == "memory-mapped"
        assert large.select(np.array([2, 9])).storage == "in memory"


def test_an_array_in_memory_is_returned_unchanged(colour: Array) -> None:
    assert to_memory(colour) is colour


# --- samples and statistics


@pytest.mark.parametrize("sizes", [(500, 300, 200), (700, 200, 95, 5), (1000,)], ids=str)
@pytest.mark.parametrize("count", [0, 10, 100, 333, 999, 1000])
def test_a_stratified_sample_has_every_class_in_proportion(sizes: tuple[int, ...], count: int) -> None:
    targets = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)) - 1, sizes))
    indices = stratified_sample(targets, count, seed=0)
    assert len(indices) == count
    assert np.array_equal(indices, np.unique(indices)), "sorted, each once"
    shares = [int((targets[indices] == label - 1).sum()) for label in range(len(sizes))]
    assert all(abs(share - size * count / 1000) <= 1 for share, size in zip(shares, sizes, strict=True))
    assert np.array_equal(indices, stratified_sample(targets, count, seed=0))
    if count in (10, 100, 333):
        assert not np.array_equal(indices, stratified_sample(targets, count, seed=1))


@pytest.mark.parametrize("count", [-1, 7])
def test_a_sample_cannot_be_larger_than_the_data(count: int) -> None:
    with pytest.raises(ValueError, match=f"cannot draw {count} of 6 images"):
        stratified_sample(np.zeros(6, dtype=np.int64), count, seed=0)


def test_statistics_are_mean_and_standard_deviation_of_each_channel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 7, 5, 3), dtype=np.uint8)
    pixels[..., 2] = 9  # a constant channel must not divide by zero
    images = ImageSet(name="x", pixels=pixels, targets=np.full(50, -1), classes=(), key="k")
    mean, std = statistics(images)
    assert np.allclose(mean, (pixels / 255).mean((0, 1, 2)), atol=1e-4)
    assert np.allclose(std[:2], (pixels / 255).std((0, 1, 2))[:2], atol=1e-4)
    assert std[2] == 1e-3
