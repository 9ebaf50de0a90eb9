"""Folders and tars: files that change, loops of links, any name, deep folders, damaged archives."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from glf import ui
from glf.config.training import Store
from glf.data.entries import CompactEntries, Entry
from glf.data.files import list_files
from glf.data.image_cache import load_or_build
from glf.data.images import ChangedFile
from glf.data.source import Skipped
from glf.data.sources import load_images
from glf.data.tar import tar_members
from machine import peak, unprivileged

Array = NDArray[np.uint8]
STORES = pytest.mark.parametrize("store", ["pack", "decode"])
NASTY = (
    b"caf\xe9.png",
    b"two\nlines.png",
    b"\x1b[2Jclear.png",
    b"tab\t.png",
    b"back\\slash.png",
    "\u202egnp.png".encode(),
)


def listed(skipped: tuple[Skipped, ...]) -> dict[str, str]:
    return dict(skipped)


# --- entries


def test_compact_entries_equal_the_entries() -> None:
    entries = [
        Entry("a/b.jpg", 5, 1_700_000_000_000_000_000),
        Entry("é\udcff.png", 2**40, -1, 512),
        Entry("", 0, 0, 0),
    ]
    table = CompactEntries(entries)
    assert list(table) == entries
    assert table[-1] == entries[-1]
    assert table[np.int64(1)] == entries[1]
    assert table[1:] == entries[1:]
    assert entries[1] in table
    assert len(CompactEntries([])) == 0
    with pytest.raises(IndexError):
        table[3]


# --- between listing and reading


@STORES
def test_files_that_are_deleted_after_they_were_listed(classes: Path, store: Store) -> None:
    files = list_files(classes, "train")
    (classes / "boot" / "1.png").unlink()
    shutil.rmtree(classes / "dress")
    held = load_or_build(files, store=store)
    gone = "cannot be read: No such file or directory"
    assert listed(held.skipped) == {"boot/1.png": gone} | {f"dress/{i}.png": gone for i in range(4)}
    assert held.pixels[:].shape == (7, 28, 28, 1)
    after = load_images(str(classes), store=store)
    assert after.skipped == ()
    assert len(after) == 7
    assert after.key != held.key


@STORES
def test_files_that_are_replaced_after_they_were_listed(classes: Path, fashion: Array, store: Store) -> None:
    """By a file of the same length, as uncompressed formats give it: only the modification time differs."""
    for path in classes.rglob("*.png"):
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    files = list_files(classes, "train")
    other = classes / "coat" / "2.bmp"
    size = other.stat().st_size
    Image.fromarray(fashion[99]).save(other)
    assert other.stat().st_size == size
    held = load_or_build(files, store=store)
    assert listed(held.skipped) == {"coat/2.bmp": "cannot be read: it changed since it was listed"}
    np.testing.assert_array_equal(held.pixels[:][..., 0], np.delete(fashion[:12], 6, axis=0))
    again = load_images(str(classes), store=store)
    assert again.skipped == ()
    assert again.key != held.key
    np.testing.assert_array_equal(again.pixels[6:7][..., 0], fashion[99:100])
    (classes / "coat" / "3.bmp").write_bytes(other.read_bytes() + b"more")
    files = list_files(classes, "train")
    (classes / "coat" / "3.bmp").write_bytes(other.read_bytes())
    why = f"cannot be read: it had {size + 4} bytes and has {size}"
    assert listed(load_or_build(files, store=store).skipped) == {"coat/3.bmp": why}


def test_a_replaced_file_is_never_cached_under_the_first_key(classes: Path, fashion: Array, tmp_path: Path) -> None:
    """Listed, replaced, cached, put back: the pixels of the replacement must not come from the cache."""
    first = classes / "boot" / "0.png"
    kept, stamp = first.read_bytes(), first.stat().st_mtime_ns
    files = list_files(classes, "train")
    Image.fromarray(fashion[99]).save(first, compress_level=0)
    larger = first.read_bytes()
    assert len(larger) > len(kept)
    first.write_bytes(larger[: len(kept)])  # of the same length; it is broken, which does not matter here
    assert listed(load_or_build(files).skipped) == {"boot/0.png": "cannot be read: it changed since it was listed"}
    first.write_bytes(kept)
    os.utime(first, ns=(stamp, stamp))
    images = load_images(str(classes))
    assert images.skipped == ()
    np.testing.assert_array_equal(images.pixels[0, ..., 0], fashion[0])


@STORES
def test_a_tar_that_is_replaced_while_it_is_read(classes: Path, tmp_path: Path, store: Store) -> None:
    tar = tmp_path / "a.tar"
    with tarfile.open(tar, "w") as out:
        out.add(classes, arcname="photos")
    files = list_files(tar, "train")
    tar.write_bytes(tar.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"more than half of the 12 .*: boot/0\.png: cannot be read: "):
        load_or_build(files, store=store)


# --- unreadable files and folders


def test_links_in_circles_and_to_nowhere(classes: Path, fashion: Array) -> None:
    (classes / "boot" / "self.png").symlink_to("self.png")
    (classes / "boot" / "a.png").symlink_to("b.png")
    (classes / "boot" / "b.png").symlink_to("a.png")
    (classes / "boot" / "nowhere.png").symlink_to("nothing.png")
    (classes / "circle").symlink_to("circle")
    (classes / "boot" / "deeper").mkdir()
    (classes / "boot" / "deeper" / "up").symlink_to(classes)
    os.mkfifo(classes / "boot" / "pipe.png")  # reading it would block
    images = load_images(str(classes))
    assert len(images) == 12
    circle, nothing = (f"cannot be read: {words}" for words in ("Too many levels of symbolic links", "No such file or"))
    why = listed(images.skipped)
    assert list(why) == [f"boot/{name}.png" for name in ("a", "b", "nowhere", "self")]
    assert all(why[f"boot/{name}.png"] == circle for name in ("a", "b", "self"))
    assert why["boot/nowhere.png"].startswith(nothing)


def test_very_deep_folders(classes: Path, fashion: Array) -> None:
    deep = classes / "boot" / "/".join("d" * 300)
    deep.mkdir(parents=True)
    Image.fromarray(fashion[50]).save(deep / "deep.png")
    assert len(load_images(str(classes))) == 13
    here = os.open(classes / "coat", os.O_RDONLY)
    for _ in range(20):  # longer than any path can be
        os.mkdir("e" * 250, dir_fd=here)
        here, above = os.open("e" * 250, os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    images = load_images(str(classes))
    assert len(images) == 13
    (skipped,) = images.skipped
    assert skipped.name.startswith("coat/eee")
    assert skipped.why == "cannot be read: File name too long"


@STORES
def test_a_file_that_becomes_a_pipe_is_not_waited_for(classes: Path, store: Store) -> None:
    source = list_files(classes, "train")
    images = load_images(str(classes), source=source, store="decode")
    path = classes / "boot" / "1.png"
    path.unlink()
    os.mkfifo(path)
    if store == "decode":
        with pytest.raises(ChangedFile, match=r"1\.png was an image .* and no longer is: not a regular file"):
            images.pixels[:]
        return
    assert listed(load_images(str(classes), source=source, store="pack").skipped) == {
        "boot/1.png": "cannot be read: not a regular file"
    }


@pytest.mark.skipif(sys.platform != "linux", reason="no such folders elsewhere")
@pytest.mark.usefixtures("hurried")
def test_the_systems_own_folders_are_not_searched(classes: Path) -> None:
    for path in ("/proc/self", "/sys"):
        with pytest.raises(ValueError, match=rf"{path} holds no files, .* give a folder of images"):
            load_images(path)
    (classes / "boot" / "processes").symlink_to("/proc/self")
    images = load_images(str(classes))
    assert len(images) == 12
    assert listed(images.skipped) == {"boot/processes/": "a folder of the system, not of files"}


def test_a_long_listing_says_what_it_does(
    classes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    list_files(classes, "train")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(ui, "PATIENCE", 0.0)
    list_files(classes, "train")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"listing {classes}: 1 image so far"
    assert len(said) < 12, "not a line for each file"


FORBIDDEN = """
import json, sys
from glf.data.sources import load_images
from glf.data.tar import tar_members
for store in ("pack", "decode"):
    images = load_images(sys.argv[1], store=store)
    print(json.dumps([len(images.pixels[:]), images.skipped]))
try:
    load_images(sys.argv[1] + "/dress")
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="root reads everything elsewhere")
def test_files_without_permission_are_listed(classes: Path) -> None:
    (classes / "boot" / "1.png").chmod(0)
    (classes / "dress").chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", FORBIDDEN, str(classes)], capture_output=True, text=True, preexec_fn=unprivileged
        )
    finally:
        (classes / "dress").chmod(0o700)
    assert done.returncode == 0, done.stderr
    denied = "cannot be read: Permission denied"
    *loaded, refused = done.stdout.splitlines()
    assert [json.loads(line) for line in loaded] == [[7, [["dress/", denied], ["boot/1.png", denied]]]] * 2
    assert refused.startswith(f"[Errno 13] Permission denied: '{classes}/dress")


# --- any name


@STORES
def test_any_name_is_loaded_listed_and_shown_in_one_line(classes: Path, fashion: Array, store: Store) -> None:
    folder = os.fsencode(classes / "boot")
    for name in NASTY:
        with open(os.path.join(folder, name), "wb") as file:
            Image.fromarray(fashion[50]).save(file, "PNG")
        with open(os.path.join(folder, b"bad" + name), "wb"):
            pass
    images = load_images(str(classes), store=store)
    assert len(images.pixels[:]) == 12 + len(NASTY)
    assert {os.fsencode(one.name) for one in images.skipped} == {b"boot/bad" + name for name in NASTY}
    lines = [one.line() for one in images.skipped]
    assert sorted(lines) == sorted(
        f"boot/bad{name}.png\tempty file" if name != "reverse" else "boot/bad\\xe2\\x80\\xaegnp.png\tempty file"
        for name in ("caf\\xe9", "two\\nlines", "\\x1b[2Jclear", "tab\\t", "back\\\\slash", "reverse")
    )
    assert all(line.replace("\t", "", 1).isprintable() for line in lines)
    "".join(lines).encode()  # text again
    assert load_images(str(classes), store=store).skipped == images.skipped  # from the cache


def test_an_error_shows_names_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a\n\x1b[2J.png").touch()
    with pytest.raises(ValueError, match=r"are bad: look at these first: a\\n\\x1b\[2J\.png: empty file$"):
        load_images(str(tmp_path / "set"))


# --- tars


def tar_of(images: Array, path: Path, change: Callable[[int, tarfile.TarInfo], None] = lambda i, m: None) -> Path:
    with tarfile.open(path, "w") as out:
        for i, pixels in enumerate(images):
            data = io.BytesIO()
            Image.fromarray(pixels).save(data, "PNG")
            member = tarfile.TarInfo(f"{i}.png")
            member.size = data.tell()
            change(i, member)
            out.addfile(member, io.BytesIO(data.getvalue()))
    return path


def test_sparse_members_and_links_are_listed_and_hidden_ones_are_not(tmp_path: Path, fashion: Array) -> None:
    def sparse(i: int, member: tarfile.TarInfo) -> None:
        kinds = {1: tarfile.GNUTYPE_SPARSE, 3: tarfile.SYMTYPE, 4: tarfile.SYMTYPE, 5: tarfile.DIRTYPE}
        names = {4: ".thumbnails/4.png"}
        member.type, member.name = kinds.get(i, tarfile.REGTYPE), names.get(i, member.name)
        member.size = member.size if i < 3 else 0

    images = load_images(str(tar_of(fashion[:6], tmp_path / "a.tar", sparse)))
    assert listed(images.skipped) == {"1.png": "stored with holes, as a sparse file", "3.png": "a link, not a file"}
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[[0, 2]])


def test_a_truncated_tar_is_refused_wherever_it_is_truncated(tmp_path: Path, fashion: Array) -> None:
    tar = tar_of(fashion[:4], tmp_path / "whole.tar")
    data, cut = tar.read_bytes(), tmp_path / "cut.tar"
    end = data.rstrip(b"\0")
    marks = -(-len(end) // 512) * 512 + 512  # one block of zeros is a sufficient end
    for place in [*range(0, len(data), 512), *range(100, marks, 777)]:
        cut.write_bytes(data[:place])
        if place < marks:
            with pytest.raises(ValueError, match=r"cut\.tar cannot be read as an uncompressed tar: \S"):
                load_images(str(cut))
        else:
            assert len(load_images(str(cut))) == 4


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path, fashion: Array) -> None:
    tar = tar_of(fashion[:4], tmp_path / "a.tar")
    data = bytearray(tar.read_bytes())
    third = [member.offset for member in tar_members(tar)][2]
    data[third + 10] ^= 1
    tar.write_bytes(data)
    with pytest.raises(ValueError, match=rf"no valid header \(damaged at byte {third}, after its member 1\.png\)$"):
        load_images(str(tar))
    both = tmp_path / "both.tar"
    both.write_bytes(tar_of(fashion[:4], tmp_path / "b.tar").read_bytes() * 2)
    with pytest.raises(ValueError, match=r"data after its end.* \(damaged at byte"):
        load_images(str(both))


@pytest.fixture
def hurried() -> Iterator[None]:
    """Fail after a minute."""

    def stuck(*_: object) -> None:
        raise AssertionError("stuck")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("size", [2**40, 2**62, 2**63, 10**30])
def test_a_huge_size_is_named_with_its_member(size: int, tmp_path: Path, fashion: Array) -> None:
    tar = tar_of(fashion[:2], tmp_path / "a.tar")
    with tarfile.open(tar, "a", format=tarfile.PAX_FORMAT) as out:
        member = tarfile.TarInfo("huge.png")
        member.pax_headers = {"size": str(size)}
        out.addfile(member)
        out.addfile(tarfile.TarInfo("next.png"))
    message = rf"its member huge\.png claims {size:,} bytes \(damaged at byte \d+, after its member 1\.png\)"
    with pytest.raises(ValueError, match=message):
        list_files(tar, "train")


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_extended_headers_without_end_are_refused(kind: bytes, tmp_path: Path, fashion: Array) -> None:
    member = tarfile.TarInfo("name")
    member.type, member.size = kind, 512
    data = b"11 path=ab\n" if kind == tarfile.XHDTYPE else b"name"
    chain = (member.tobuf(tarfile.USTAR_FORMAT) + data.ljust(512, b"\0")) * 3000
    good = tar_of(fashion[:2], tmp_path / "a.tar").read_bytes().rstrip(b"\0")
    (tmp_path / "a.tar").write_bytes(good.ljust(-(-len(good) // 512) * 512, b"\0") + chain + bytes(1024))
    with pytest.raises(ValueError, match=r"headers .* without end \(damaged at byte \d+, after its member 1\.png\)"):
        list_files(tmp_path / "a.tar", "train")
    member.size = 2**33 - 1
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.USTAR_FORMAT) + bytes(2048))
    with peak() as memory, pytest.raises(ValueError, match=r"extended header claims 8,589,934,591 bytes"):
        list_files(tmp_path / "a.tar", "train")
    assert memory.bytes < 2**26


@pytest.mark.usefixtures("hurried")
def test_a_negative_size_does_not_loop_forever(tmp_path: Path) -> None:
    for size in (-512, -1024, -5000):
        tar = tmp_path / "a.tar"
        with tarfile.open(tar, "w", format=tarfile.GNU_FORMAT) as out:
            for i in range(4):
                member = tarfile.TarInfo(f"{i}.png")
                member.size = size if i == 2 else 0
                out.addfile(member)
        with pytest.raises(ValueError, match=rf"a\.tar cannot .*: its member 2\.png claims {size:,} bytes .*byte 1024"):
            load_images(str(tar))


@pytest.mark.usefixtures("hurried")
def test_damaged_tars_are_read_or_refused(tmp_path: Path, fashion: Array) -> None:
    data = tar_of(fashion[:6], tmp_path / "a.tar").read_bytes()
    headers = [member.offset for member in tar_members(tmp_path / "a.tar")]
    rng, outcomes = random.Random(0), {"read": 0, "refused": 0}
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 3, 20))):
            changed[rng.choice(headers) + rng.randrange(512)] = rng.randrange(256)
        if rng.random() < 0.5:  # a correct checksum, so that the rest of the header is used
            for start in headers:
                block = changed[start : start + 512]
                total = sum(block[:148]) + 8 * 32 + sum(block[156:])
                changed[start + 148 : start + 156] = b"%06o\0 " % total
        (tmp_path / "b.tar").write_bytes(changed)
        try:
            found = list_files(tmp_path / "b.tar", "train")
            outcomes["read"] += 1
            assert len(found.entries) <= 6
        except ValueError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 30


def test_annotations_in_a_folder_with_loops_of_links(tmp_path: Path) -> None:
    from glf.evaluation.detect.annotations import AnnotationRoot

    for name in ("a", "b", "c"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.txt").touch()
    for name in ("a", "b", "c"):
        for other in ("a", "b", "c"):
            (tmp_path / "set" / name / f"to-{other}").symlink_to(tmp_path / "set" / other)
    assert {Path(name).name for name in AnnotationRoot(path=tmp_path / "set").files} == {"1.txt"}
    assert len(AnnotationRoot(path=tmp_path / "set").files) == 3
