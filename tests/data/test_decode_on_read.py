"""Images decoded on read equal the cached ones bit for bit; files are checked once."""

import pickle
import shutil
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from glf.data import decode
from glf.data.entries import CompactEntries
from glf.data.files import Files
from glf.data.images import SHARE, ChangedFile, DecodeOnRead
from glf.data.source import Skipped
from glf.data.sources import load_images
from photos import BROKEN, write_photos

Array = NDArray[np.uint8]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "camera")


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """A list that gets one element per decoded image."""
    original, calls = decode.decode, list[int | None]()

    def counted(data: bytes, *, side: int | None = None, least: int | None = None) -> Array:
        calls.append(side)
        return original(data, side=side, least=least)

    monkeypatch.setattr(decode, "decode", counted)
    return calls


def kinds(tmp_path: Path) -> list[str]:
    return sorted(path.suffix for path in (tmp_path / "cache" / "images").iterdir())


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the free space that the disk reports."""

    def set_free(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))

    return set_free


# --- the same images


def as_folder(photos: Path) -> Path:
    return photos


def as_tar(photos: Path) -> Path:
    with tarfile.open(photos.with_suffix(".tar"), "w") as tar:
        tar.add(photos, photos.name)
    return photos.with_suffix(".tar")


@pytest.mark.parametrize("source", [as_folder, as_tar])
@pytest.mark.parametrize("size", [56, None])
def test_pixels_and_key_are_those_of_the_cached_set(
    photos: Path, source: Callable[[Path], Path], size: int | None
) -> None:
    path = str(source(photos))
    lazy = load_images(path, size=size, store="decode")
    packed = load_images(path, size=size, store="pack")
    assert (lazy.storage, packed.storage) == ("decoded", "in memory")
    assert isinstance(lazy.pixels, DecodeOnRead)
    assert lazy.pixels.shape == packed.pixels.shape == (24, *[64 if size else 256] * 2, 3)
    assert (lazy.pixels.dtype, lazy.pixels.ndim, lazy.pixels.nbytes) == (np.uint8, 4, packed.pixels.nbytes)
    np.testing.assert_array_equal(lazy.pixels[:], packed.pixels)
    assert lazy.key == packed.key
    assert lazy.skipped == packed.skipped
    assert tuple(s.name for s in lazy.skipped) == BROKEN
    assert lazy.targets.tolist() == packed.targets.tolist() == [0] * 12 + [1] * 12
    assert lazy.classes == packed.classes == ("boot", "coat")


def test_images_of_one_small_size_are_not_resized(classes: Path, colour: Array, decodings: list[int | None]) -> None:
    lazy = load_images(str(classes), store="decode")
    assert lazy.pixels.shape == (12, 28, 28, 1)
    np.testing.assert_array_equal(lazy.pixels[:], load_images(str(classes), store="pack").pixels)
    Image.fromarray(colour[0]).save(classes / "boot" / "colour.png")
    lazy = load_images(str(classes), store="decode")
    assert lazy.pixels.shape == (13, 28, 28, 3)  # the grey ones fill three channels
    np.testing.assert_array_equal(lazy.pixels[:], load_images(str(classes), store="pack").pixels)
    assert set(decodings) == {None}


def test_indexing_is_that_of_numpy(photos: Path) -> None:
    images = load_images(str(photos), size=28, store="decode")
    pixels = images.pixels[np.arange(24)]
    mask = np.arange(24) % 5 == 0
    for indices in (slice(3, 9), slice(None, None, -7), np.array([5, 5, 0, -1]), mask, [2, 1], 7, -2, np.int64(3), []):
        np.testing.assert_array_equal(images.pixels[indices], pixels[indices])
    with pytest.raises(IndexError):
        images.pixels[24]
    with pytest.raises(TypeError, match="have one index"):
        images.pixels[:, 3]


def test_a_selection_is_not_decoded_and_has_the_key_of_the_cached_selection(
    photos: Path, decodings: list[int | None]
) -> None:
    lazy = load_images(str(photos), size=28, store="decode")
    packed = load_images(str(photos), size=28, store="pack")
    decodings.clear()
    for indices in (np.arange(4, 20), np.array([7, 3, 3]), packed.targets == 1):
        part, expected = lazy.select(indices), packed.select(indices)
        assert part.storage == "decoded"
        assert not decodings
        assert part.key == expected.key
        assert part.targets.tolist() == expected.targets.tolist()
        np.testing.assert_array_equal(part.select(np.array([2, 0])).pixels[:], expected.pixels[[2, 0]])
        decodings.clear()


def test_warnings_of_pil_are_suppressed(classes: Path, fashion: Array) -> None:
    Image.fromarray(fashion[0]).convert("P").save(classes / "boot" / "p.png", transparency=b"\x00" * 9)
    images = load_images(str(classes), store="decode")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(images.pixels[:]) == 13


# --- checked once


def test_the_check_is_remembered(photos: Path, tmp_path: Path, decodings: list[int | None]) -> None:
    first = load_images(str(photos), size=28, store="decode")
    assert len(decodings) >= 24
    assert kinds(tmp_path) == [".json"]
    decodings.clear()
    again = load_images(str(photos), size=28, store="decode")
    assert not decodings
    assert (again.key, again.skipped, again.pixels.shape) == (first.key, first.skipped, first.pixels.shape)
    load_images(str(photos), size=24, store="decode")  # other pixels, so everything is checked again
    assert decodings


def test_caching_includes_the_check_but_not_the_reverse(
    photos: Path, tmp_path: Path, decodings: list[int | None]
) -> None:
    load_images(str(photos), size=28, store="pack")
    decodings.clear()
    assert load_images(str(photos), size=28, store="decode").storage == "decoded"
    assert not decodings
    for path in (tmp_path / "cache" / "images").glob("*.npy"):
        path.unlink()
    assert load_images(str(photos), size=28, store="pack").storage == "in memory"
    assert kinds(tmp_path) == [".json", ".npy"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"side": 32, "channels": 3, "resized": true, "skipped": [["of", "another set"]]}']
)
def test_a_damaged_cache_entry_is_rebuilt(photos: Path, tmp_path: Path, content: str) -> None:
    first = load_images(str(photos), size=28, store="decode")
    (note,) = (tmp_path / "cache" / "images").iterdir()
    note.write_text(content)
    again = load_images(str(photos), size=28, store="decode")
    assert (again.key, again.skipped) == (first.key, first.skipped)


def test_a_file_that_could_not_be_read_is_tried_again(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, calls = Files.read, list[str]()

    def denied(self: Files, i: int) -> bytes:
        calls.append(self.name(i))
        if self.name(i) == "coat/2.png" and calls.count(self.name(i)) % 2 == 0:  # the first read is for the key
            raise PermissionError(13, "Permission denied")
        return read(self, i)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "read", denied)
        lazy, packed = (load_images(str(classes), store=store) for store in ("decode", "pack"))  # type: ignore[arg-type]
        assert lazy.skipped == packed.skipped == (Skipped("coat/2.png", "cannot be read: Permission denied"),)
        assert lazy.key == packed.key
        np.testing.assert_array_equal(lazy.pixels[:], packed.pixels)
    whole = load_images(str(classes), store="decode")
    assert whole.skipped == ()
    assert whole.key != lazy.key


def test_more_than_half_bad_is_an_error_here_too(classes: Path, tmp_path: Path) -> None:
    for i in range(13):
        (classes / "boot" / f"bad{i:02}.jpg").touch()
    with pytest.raises(ValueError, match=r"more than half of the 25 .* are bad"):
        load_images(str(classes), store="decode")
    assert kinds(tmp_path) == []


# --- store="auto"


def test_auto_caches_what_fits_on_the_disk(
    photos: Path, tmp_path: Path, disk: Callable[[int], None], decodings: list[int | None]
) -> None:
    needed = 27 * 32 * 32 * 3  # bad files count, because they are not known in advance
    disk(int(needed / 0.8) - 2)
    lazy = load_images(str(photos), size=28)
    assert lazy.storage == "decoded"
    assert kinds(tmp_path) == [".json"]
    decodings.clear()
    disk(24 * 32 * 32 * 3)
    assert load_images(str(photos), size=28).storage == "decoded"
    assert not decodings
    disk(int(needed / 0.8) + 2)
    packed = load_images(str(photos), size=28)
    assert packed.storage == "in memory"
    assert kinds(tmp_path) == [".json", ".npy"]
    disk(0)
    assert load_images(str(photos), size=28).storage == "in memory"  # already in the cache
    assert load_images(str(photos), size=28, store="decode").storage == "decoded"  # and the cache is left alone
    assert load_images(str(photos), size=28).key == packed.key == lazy.key


def test_auto_stops_caching_what_outgrows_the_disk(
    classes: Path, tmp_path: Path, colour: Array, disk: Callable[[int], None]
) -> None:
    Image.fromarray(colour[0]).save(classes / "dress" / "last.png")  # three times the space of the grey ones before it
    disk(2 * 13 * 28 * 28)
    assert load_images(str(classes)).pixels.shape == (13, 28, 28, 3)
    assert kinds(tmp_path) == [".json"]
    with pytest.raises(OSError, match=r"0\.0 GB are free: .*--store decode"):
        load_images(str(classes), store="pack")


# --- files that change while they are in use


def gone(path: Path) -> str:
    path.unlink()
    return "No such file or directory"


def cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:700])
    return r"it had \d+ bytes and has 700"


def scribbled(path: Path) -> str:
    path.write_bytes(b"x" * path.stat().st_size)
    return "not an image in a format among .*"


@pytest.mark.parametrize("change", [gone, cut, scribbled])
def test_a_file_that_changes_is_named_in_one_line(photos: Path, change: Callable[[Path], str]) -> None:
    """The same from a worker process: see tests/train/test_photos.py."""
    images = load_images(str(photos), size=28, store="decode")
    why = change(photos / "coat" / "013.jpg")
    with pytest.raises(ChangedFile) as error:
        images.pixels[np.random.default_rng(0).permutation(24)]
    assert error.match(rf"^{photos}/coat/013\.jpg was an image when the data were checked and no longer is: {why}$")
    assert images.pixels[:SHARE].shape == (SHARE, 32, 32, 3)  # the others can still be read


# --- worker processes


def test_only_names_are_pickled(photos: Path) -> None:
    images = load_images(str(photos), size=28, store="decode")
    assert isinstance(images.pixels, DecodeOnRead)
    sent = pickle.dumps(images.pixels)
    assert len(sent) < 4000
    np.testing.assert_array_equal(pickle.loads(sent)[3:5], images.pixels[3:5])
    assert isinstance(images.pixels.source.entries, CompactEntries)
