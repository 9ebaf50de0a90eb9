"""Files that claim huge sizes, really large images, and formats that are easily decoded to wrong colours."""

import io
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from glf.data import decode as module
from glf.data import files as files_module
from glf.data.decode import decode, quiet
from glf.data.sources import load_images
from machine import peak

Array = NDArray[np.uint8]
MB = 2**20


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(width: int, height: int, colour: int, depth: int, rows: bytes) -> bytes:
    """A PNG with these numbers in its header, whatever the data are."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def tiff(width: int, height: int, tile: int, data: bytes) -> bytes:
    """A TIFF of one LZW-compressed tile of this side."""
    entries = [(256, width), (257, height), (258, 8), (259, 5), (262, 1), (277, 1), (322, tile), (323, tile), (324, 8)]
    fields = [*entries, (325, len(data))]
    listed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in fields)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(fields)) + listed + bytes(4)


# --- false claims


def test_a_small_file_that_claims_gigabytes_takes_no_memory(classes: Path) -> None:
    row = bytes(1 + 3 * 50_000)
    (classes / "boot" / "bomb.png").write_bytes(png(50_000, 50_000, 2, 8, 10 * row))
    (classes / "boot" / "tile.tif").write_bytes(tiff(10, 10, 40_000, b"\x80\x0b\x60\x50\x38" * 20))
    assert (classes / "boot" / "bomb.png").stat().st_size < 5000
    with peak() as memory:
        images = load_images(str(classes))
    assert memory.bytes < 200 * MB
    assert images.pixels.shape == (12, 28, 28, 1)
    assert dict(images.skipped) == {
        "boot/bomb.png": "more than 178,956,970 pixels",
        "boot/tile.tif": "tiles of 1,600,000,000 pixels in an image of 100",
    }


def test_a_file_too_large_to_be_an_image_is_not_read(classes: Path) -> None:
    with (classes / "boot" / "huge.png").open("wb") as file:
        file.truncate(files_module.MAX_BYTES + 1)  # a sparse file, which takes no disk space
    with peak() as memory:
        images = load_images(str(classes))
    assert memory.bytes < 200 * MB
    assert dict(images.skipped) == {"boot/huge.png": "a file of 1,073,741,825 bytes, more than 1,073,741,824"}


def test_a_tile_larger_than_its_small_image_is_fine(fashion: Array) -> None:
    """As in the last level of a pyramid: tiles keep their size although the image is smaller."""
    plain = saved(Image.fromarray(np.pad(fashion[0], ((0, 228), (0, 228)))), "TIFF", compression="tiff_lzw")
    opened = Image.open(io.BytesIO(plain))
    offset, count = opened.tag_v2[273][0], sum(opened.tag_v2[279])  # type: ignore[attr-defined]
    assert len(opened.tag_v2[273]) == 1, "one strip can stand in for one tile"  # type: ignore[attr-defined]
    pixels = decode(tiff(28, 28, 256, plain[offset : offset + count]))
    np.testing.assert_array_equal(pixels[..., 0], fashion[0])


# --- really large images


def test_a_jpeg_of_100_megapixels_is_decoded_at_a_fraction(tmp_path: Path, fashion: Array) -> None:
    (tmp_path / "set").mkdir()
    photo = Image.fromarray(fashion[0]).resize((224, 224), Image.Resampling.BICUBIC)
    photo.resize((10_000, 10_000), Image.Resampling.NEAREST).save(tmp_path / "set" / "0.jpg", quality=90)
    photo.save(tmp_path / "set" / "1.png")
    with peak() as memory:
        images = load_images(str(tmp_path / "set"), size=28)
    assert memory.bytes < 100 * MB, "the whole would take 100 million bytes, and its copies"
    assert images.skipped == ()
    assert np.abs(images.pixels[0].astype(int) - images.pixels[1]).mean() < 3


@pytest.mark.parametrize("first", ["small.png", "large.jpg"])
def test_the_limit_applies_to_the_decoded_fraction(
    tmp_path: Path, fashion: Array, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set").mkdir()
    photo = Image.fromarray(fashion[0]).resize((560, 560))
    for number, name in enumerate(sorted(("small.png", "large.jpg"), key=lambda name: name != first)):
        image = Image.fromarray(fashion[1]) if name == "small.png" else photo
        image.save(tmp_path / "set" / f"{number}-{name}")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200_000)  # the photo has 313,600, and a quarter of that as a half
    images = load_images(str(tmp_path / "set"), size=28)
    assert images.skipped == ()
    assert images.pixels.shape == (2, 32, 32, 1)


def test_large_images_of_other_formats_are_skipped_with_the_limit(
    classes: Path, fashion: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = Image.fromarray(fashion[0]).resize((560, 560))
    photo.save(classes / "boot" / "progressive.jpg", progressive=True)  # all its coefficients are in memory
    photo.save(classes / "boot" / "lossless.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200_000)
    why = "560 x 560 pixels, more than 200,000"
    assert dict(load_images(str(classes), size=28).skipped) == {"boot/lossless.png": why, "boot/progressive.jpg": why}
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode(saved(photo, "JPEG", progressive=True), side=28).shape == (28, 28, 1)


@pytest.mark.parametrize(("large", "at_once"), [(28 * 28 - 1, 1), (28 * 28, 3)])
def test_large_images_are_decoded_one_at_a_time(
    fashion: Array, large: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, most, flat, count = 0, 0, module._flat, threading.Lock()

    def slow(image: Image.Image) -> Image.Image:
        nonlocal inside, most
        with count:
            inside += 1
            most = max(most, inside)
        time.sleep(0.2)
        with count:
            inside -= 1
        return flat(image)

    monkeypatch.setattr(module, "_flat", slow)
    monkeypatch.setattr(module, "LARGE", large)
    data = saved(Image.fromarray(fashion[0]), "PNG")
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(decode, [data] * 3))
    assert most == at_once
    assert all((pixels[..., 0] == fashion[0]).all() for pixels in results)


# --- colours as a person sees them


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_of_every_kind_keep_their_brightness(colour: int, channels: int, fashion: Array) -> None:
    """PIL writes 16 bits for grey only, so the PNG is made by hand; 0x1234 is 0x12 in eight bits."""
    planes = [fashion[0], fashion[1], fashion[2]][: 1 if channels < 3 else 3]
    opaque = [np.full((28, 28), 255, np.uint8)] if channels in (2, 4) else []
    eight = np.stack([*planes, *opaque], axis=-1)
    rows = b"".join(b"\0" + (row.astype(np.uint16) * 257).astype(">u2").tobytes() for row in eight)
    pixels = decode(png(28, 28, colour, 16, rows))
    # (PIL has no 16-bit grey with alpha: it comes as three equal channels.)
    np.testing.assert_array_equal(pixels, np.broadcast_to(eight[..., : len(planes)], pixels.shape))
    assert pixels.max() > 200
    assert 10 < pixels.mean() < 120, "neither white nor black"


def test_sixteen_bits_of_other_formats(fashion: Array) -> None:
    wide = fashion[0].astype(np.uint16) * 257
    big_endian = Image.frombytes("I;16B", (28, 28), wide.astype(">u2").tobytes())
    np.testing.assert_array_equal(decode(saved(big_endian, "TIFF"))[..., 0], fashion[0])
    pgm = b"P5 28 28 65535\n" + wide.astype(">u2").tobytes()
    np.testing.assert_array_equal(decode(pgm)[..., 0], fashion[0])
    keyed = decode(saved(Image.fromarray(wide), "PNG", transparency=0))
    np.testing.assert_array_equal(keyed[..., 0], np.where(fashion[0] == 0, 255, fashion[0]))


@pytest.mark.parametrize("bits", [8, 16])
def test_a_tiff_whose_white_is_zero(fashion: Array, bits: int) -> None:
    values = fashion[0] if bits == 8 else fashion[0].astype(np.uint16) * 257
    data = bytearray(saved(Image.fromarray(values), "TIFF"))
    place = data.index(struct.pack("<HHII", 262, 3, 1, 1))
    data[place : place + 12] = struct.pack("<HHII", 262, 3, 1, 0)
    np.testing.assert_array_equal(decode(bytes(data))[..., 0], 255 - fashion[0])


def test_cmyk(colour: Array) -> None:
    inks = Image.fromarray(colour[0]).convert("CMYK")
    for kind in ("TIFF", "JPEG"):
        pixels = decode(saved(inks.resize((112, 112), Image.Resampling.NEAREST), kind))[2::4, 2::4]
        assert np.abs(pixels.astype(int) - colour[0]).mean() < (1 if kind == "TIFF" else 8), kind


def test_the_content_counts_and_not_the_suffix(classes: Path, fashion: Array) -> None:
    (classes / "boot" / "0.png").rename(classes / "boot" / "0.jpg")
    images = load_images(str(classes))
    assert images.skipped == ()
    np.testing.assert_array_equal(images.pixels[0, ..., 0], fashion[0])


def test_a_wrong_palette_only_warns(colour: Array) -> None:
    """A palette of transparent colours, a mask that is cut: PIL warns, and warnings may be errors."""
    palette = Image.fromarray(colour[0]).quantize(16)
    with quiet():
        pixels = decode(saved(palette, "PNG", transparency=bytes([0] * 8 + [255] * 8)))
    drawn, index = np.asarray(palette.convert("RGB")), np.asarray(palette)
    np.testing.assert_array_equal(pixels, np.where(index[..., None] < 8, 255, drawn))
