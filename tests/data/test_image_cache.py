"""The cache of decoded images: kept between loads, rebuilt when files change, never half-written."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from glf.data import decode, decode_all, image_cache
from glf.data.files import Files
from glf.data.source import Skipped, Source
from glf.data.sources import load_images

Array = NDArray[np.uint8]


def stores(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "images").glob("*"))


# --- kept and rebuilt


def test_the_second_load_uses_the_cache(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (classes / "boot" / "bad.jpg").write_bytes(b"")
    first = load_images(str(classes))
    times = [path.stat().st_mtime_ns for path in stores(tmp_path)]
    assert [path.suffix for path in stores(tmp_path)] == [".json", ".npy"]
    assert not first.pixels.flags.writeable
    monkeypatch.setattr(decode, "decode", None)  # any decoding would now fail
    second = load_images(str(classes))
    assert [path.stat().st_mtime_ns for path in stores(tmp_path)] == times
    np.testing.assert_array_equal(second.pixels, first.pixels)
    assert second.key == first.key
    assert second.skipped == first.skipped == (Skipped("boot/bad.jpg", "empty file"),)
    assert second.targets.tolist() == first.targets.tolist()


def test_any_change_gives_a_new_key(classes: Path, fashion: Array) -> None:
    keys = [load_images(str(classes)).key]
    shutil.copytree(classes, classes.parent / "copy")  # with modification times: the same data elsewhere
    assert load_images(str(classes.parent / "copy")).key == keys[0]
    (classes / "coat" / "0.png").unlink()
    keys.append(load_images(str(classes)).key)
    os.utime(classes / "coat" / "1.png", ns=(1, 1))
    keys.append(load_images(str(classes)).key)
    (classes / "coat" / "1.png").rename(classes / "coat" / "9.png")
    keys.append(load_images(str(classes)).key)
    Image.fromarray(fashion[99]).save(classes / "coat" / "8.png")
    keys.append(load_images(str(classes)).key)
    keys.append(load_images(str(classes), size=14).key)
    assert len(set(keys)) == len(keys)


def test_images_of_native_size_are_cached_once_for_all_crop_sizes(classes: Path, tmp_path: Path) -> None:
    kept = [load_images(str(classes), size=size).key for size in (None, 28, 32, 25)]
    assert len(set(kept)) == 1
    assert len(stores(tmp_path)) == 2
    assert load_images(str(classes), size=24).size == (27, 27)  # 28 px are too many for it, whatever is in the cache
    assert load_images(str(classes), size=25).size == (28, 28)
    assert len(stores(tmp_path)) == 4


def test_equal_names_sizes_and_times_do_not_hide_other_pixels(tmp_path: Path, fashion: Array) -> None:
    """Uncompressed formats and a constant modification time: only the bytes differ."""
    for part, name in ((fashion[:5], "a"), (fashion[5:10], "b")):
        (tmp_path / name).mkdir()
        for i, pixels in enumerate(part):
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.bmp")
            os.utime(tmp_path / name / f"{i}.bmp", ns=(0, 0))
    np.testing.assert_array_equal(load_images(str(tmp_path / "a")).pixels[..., 0], fashion[:5])
    np.testing.assert_array_equal(load_images(str(tmp_path / "b")).pixels[..., 0], fashion[5:10])


def test_a_damaged_cache_is_rebuilt(classes: Path, tmp_path: Path) -> None:
    expected = np.array(load_images(str(classes)).pixels)
    note, store = stores(tmp_path)
    for path, content in (
        (store, store.read_bytes()[:300]),
        (store, b""),
        (note, b"[["),
        (note, b'[["a", "b"]]'),
    ):
        path.write_bytes(content)
        if path is note and content.startswith(b'[["a"'):
            store.write_bytes(store.read_bytes()[:10])
        np.testing.assert_array_equal(load_images(str(classes)).pixels, expected)
    note.unlink()
    np.testing.assert_array_equal(load_images(str(classes)).pixels, expected)


# --- never half-written

LOAD = """
import sys
from glf.data.source import Skipped, Source
from glf.data.sources import load_images
images = load_images(sys.argv[1])
print(images.key, images.pixels.sum(), len(images))
"""
KILLED = """
import os, signal, sys
from glf.data import decode as module
from glf.data.sources import load_images
decode, count = module.decode, 0
def fatal(data, **options):
    global count
    count += 1
    if count > 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return decode(data, **options)
module.decode = fatal
load_images(sys.argv[1])
"""


def test_a_kill_leaves_nothing_that_looks_complete(tmp_path: Path, fashion: Array) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i, pixels in enumerate(fashion):
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = [path for path in stores(tmp_path) if path.suffix != ".lock"]
    assert left  # it had started
    assert all(path.suffix == ".tmp" for path in left)
    for path in left:
        os.utime(path, (time.time() - 2 * image_cache.DAY,) * 2)
    np.testing.assert_array_equal(load_images(str(folder)).pixels[..., 0], fashion)
    assert [path.suffix for path in stores(tmp_path)] == [".json", ".npy"]  # the old leftovers are gone


def test_an_interrupted_build_leaves_nothing(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decode_all, "_header", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_images(str(classes))
    assert stores(tmp_path) == []
    assert len(load_images(str(classes))) == 12


def test_processes_that_load_at_once_agree(tmp_path: Path, fashion: Array) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i, pixels in enumerate(fashion):
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
    both = [
        subprocess.Popen([sys.executable, "-c", LOAD, str(folder)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate()[0].split() for process in both]
    assert outputs[0] == outputs[1] == [load_images(str(folder)).key, str(fashion.sum()), "200"]
    assert [path.suffix for path in stores(tmp_path)] == [".json", ".npy"]


@pytest.mark.parametrize("readable", [True, False])
def test_of_processes_that_start_together_one_decodes(
    readable: bool, classes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun starts them; all agree about a file that cannot be read."""
    filled, read = list[Path](), Files.read

    def counted(path: Path, source: Source, **settings: object) -> decode_all.DecodeResult:
        filled.append(path)
        time.sleep(0.5)  # by then all others have found no cache
        return decode_all.decode_all(path, source, **settings)  # type: ignore[arg-type]

    def denied(self: Files, i: int) -> bytes:
        loading = threading.current_thread().name.startswith("load")  # the others decode
        if not readable and self.name(i) == "coat/2.png" and not loading:
            raise PermissionError(13, "Permission denied")
        return read(self, i)

    monkeypatch.setattr(image_cache, "decode_all", counted)
    monkeypatch.setattr(Files, "read", denied)
    with ThreadPoolExecutor(4, "load") as pool:
        found = list(pool.map(lambda _: load_images(str(classes)), range(4)))
    assert len(filled) == 1
    assert {(len(images), images.key) for images in found} == {(12 if readable else 11, found[0].key)}


def test_too_little_disk_space_is_reported_before_the_work(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 12 * 28 * 28
    free = needed - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(OSError, match=r"need 0\.0 GB in .*cache.*GLF_CACHE"):
        load_images(str(classes), store="pack")
    assert stores(tmp_path) == []
    free = needed
    assert len(load_images(str(classes), store="pack")) == 12


# --- bad files


def test_bad_files_are_skipped_and_listed(classes: Path, colour: Array) -> None:
    big = np.tile(colour[0], (4, 4, 1))
    Image.fromarray(big).save(classes / "boot" / "whole.jpg")
    (classes / "boot" / "cut.jpg").write_bytes((classes / "boot" / "whole.jpg").read_bytes()[:900])
    (classes / "boot" / "whole.jpg").unlink()
    (classes / "coat" / "cut.png").write_bytes((classes / "coat" / "0.png").read_bytes()[:200])
    (classes / "coat" / "text.jpg").write_text("this is no photograph")
    (classes / "dress" / "empty.webp").touch()
    images = load_images(str(classes))
    assert images.pixels.shape == (12, 28, 28, 1)  # the broken large colour image had no effect
    assert images.targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    why = dict(images.skipped)
    assert list(why) == ["boot/cut.jpg", "coat/cut.png", "coat/text.jpg", "dress/empty.webp"]
    assert "truncated" in why["boot/cut.jpg"]
    assert "not an image" in why["coat/text.jpg"]
    assert why["dress/empty.webp"] == "empty file"
    assert not any("0x" in reason for reason in why.values())  # no memory addresses: the list is reproducible


def test_more_than_half_bad_is_an_error(classes: Path, tmp_path: Path) -> None:
    for i in range(12):
        (classes / "boot" / f"bad{i:02}.jpg").touch()
    assert len(load_images(str(classes)).skipped) == 12  # exactly half
    (classes / "boot" / "bad12.jpg").write_text("text")
    with pytest.raises(ValueError, match=r"more than half of the 25 .* bad: .*: boot/bad00\.jpg: empty file;"):
        load_images(str(classes))
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "one.png").touch()
    with pytest.raises(ValueError, match="more than half of the 1 "):
        load_images(str(tmp_path / "all"))


def test_decompression_bombs_are_bad_files(classes: Path, fashion: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(np.tile(fashion[0], (2, 1))).save(classes / "boot" / "warned.png")
    Image.fromarray(np.tile(fashion[0], (3, 1))).save(classes / "boot" / "refused.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 28 * 28)
    images = load_images(str(classes))
    assert images.pixels.shape == (12, 28, 28, 1)
    assert [name for name, _ in images.skipped] == ["boot/refused.png", "boot/warned.png"]
    assert "28 x 56 pixels" in dict(images.skipped)["boot/warned.png"]


def test_a_file_that_could_not_be_read_is_tried_again(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Files.read

    calls: list[str] = []

    def denied(self: Files, i: int) -> bytes:
        calls.append(self.name(i))
        if self.name(i) == "coat/2.png" and calls.count(self.name(i)) > 1:  # the first read is for the key
            raise PermissionError(13, "Permission denied")
        return read(self, i)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "read", denied)
        images = load_images(str(classes))
        assert images.skipped == (Skipped("coat/2.png", "cannot be read: Permission denied"),)
        assert len(images) == 11
    assert load_images(str(classes)).skipped == ()
    assert load_images(str(classes)).key != images.key


# --- the shape of cached images


def tiled(pixels: Array, height: int, width: int) -> Array:
    return np.resize(pixels, (height, width, *pixels.shape[2:]))


@pytest.mark.parametrize(
    ("sizes", "size", "side"),
    [
        ([(28, 28), (28, 28)], None, 28),
        ([(96, 96), (96, 96)], None, 96),
        ([(97, 97), (97, 97)], None, 256),
        ([(28, 28), (28, 29)], None, 256),
        ([(28, 28), (29, 29)], None, 256),
        ([(40, 30), (40, 30)], None, 256),
        ([(64, 64), (64, 64)], 56, 64),
        ([(65, 65), (65, 65)], 56, 64),
        ([(16, 16), (16, 16)], 56, 16),
        ([(28, 28), (200, 300)], 32, 37),
        ([(1, 5000), (5000, 1)], 7, 8),
    ],
)
def test_the_size_rule(
    tmp_path: Path, fashion: Array, sizes: list[tuple[int, int]], size: int | None, side: int
) -> None:
    (tmp_path / "set").mkdir()
    for i, (height, width) in enumerate(sizes):
        Image.fromarray(tiled(fashion[i], height, width)).save(tmp_path / "set" / f"{i}.png")
    images = load_images(str(tmp_path / "set"), size=size)
    assert images.size == (side, side)


def test_an_image_of_another_shape_at_the_end_of_many(tmp_path: Path, fashion: Array, colour: Array) -> None:
    """Decoding starts as small and grey, and must start again twice."""
    (tmp_path / "set").mkdir()
    for i in range(150):
        Image.fromarray(fashion[i]).save(tmp_path / "set" / f"{i:03}.png")
    Image.fromarray(colour[0]).save(tmp_path / "set" / "150.png")
    Image.fromarray(tiled(fashion[0], 40, 50)).save(tmp_path / "set" / "151.png")
    images = load_images(str(tmp_path / "set"), size=28)
    assert images.pixels.shape == (152, 32, 32, 3)
    assert images.pixels[:150].std() > 50
    assert np.ptp(images.pixels[:150], axis=-1).max() == 0
    assert np.ptp(images.pixels[150], axis=-1).max() > 0
