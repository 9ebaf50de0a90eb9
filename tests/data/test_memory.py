"""Small arrays in memory, large ones mapped and sent by name."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from glf.data.batches import BatchReader, MappedFile, memmap_handle, open_memmap
from glf.data.images import to_memory
from glf.data.sources import load_images

Array = NDArray[np.uint8]


@pytest.fixture
def mapped(tmp_path: Path, colour: Array) -> Array:
    np.save(tmp_path / "a.npy", colour)
    array: Array = np.load(tmp_path / "a.npy", mmap_mode="r")
    return array


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


def test_an_array_that_is_no_file_stays_itself(colour: Array, mapped: Array) -> None:
    assert to_memory(colour) is colour
    assert memmap_handle(colour) is colour
    assert memmap_handle(None) is None
    assert memmap_handle(mapped.transpose(0, 3, 1, 2)) is not None
    assert isinstance(memmap_handle(mapped[::2]), np.ndarray)  # with gaps: sent as it is


@pytest.mark.parametrize("rows", [slice(None), slice(5, 40), slice(65, 66), slice(3, 60)])
def test_a_mapped_part_goes_by_name(mapped: Array, colour: Array, rows: slice) -> None:
    part = mapped[rows][1:] if rows == slice(3, 60) else mapped[rows]  # a part of a part too
    sent = memmap_handle(part)
    assert isinstance(sent, MappedFile)
    again = open_memmap(pickle.loads(pickle.dumps(sent)))
    assert isinstance(again, np.memmap)
    assert not again.flags.writeable
    np.testing.assert_array_equal(again, part)
    np.testing.assert_array_equal(open_memmap(memmap_handle(again)), part)


def test_a_reader_that_is_sent_carries_no_mapped_pixels(
    mapped: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glf.data.images.IN_MEMORY", 0)
    images = load_images(str(tmp_path / "a.npy")).select(np.arange(10, 60))
    np.save(tmp_path / "prior.npy", np.random.default_rng(0).normal(size=(50, 200)).astype(np.float32))
    reader = BatchReader(images, np.load(tmp_path / "prior.npy", mmap_mode="r"))
    sent = pickle.dumps(reader)
    assert len(sent) < 3000
    rows = np.array([4, 4, 49])
    for given, expected in zip(pickle.loads(sent)[rows], reader[rows], strict=True):
        assert (given == expected).all()
