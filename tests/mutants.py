"""Damaged image files: real images in many formats, with random damage as by disks, networks and attackers."""

import io
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from glf.data.sources import load_images

KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "baseline.jpg": ("JPEG", {"quality": 85}),
    "progressive.jpg": ("JPEG", {"quality": 85, "progressive": True}),
    "colour.png": ("PNG", {}),
    "palette.png": ("PNG", {}),
    "sixteen.png": ("PNG", {}),
    "animated.gif": ("GIF", {}),
    "plain.tif": ("TIFF", {}),
    "lzw.tif": ("TIFF", {"compression": "tiff_lzw"}),
    "deflate.tif": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    "lossy.webp": ("WEBP", {"quality": 80}),
    "lossless.webp": ("WEBP", {"lossless": True}),
}
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF)


def originals() -> dict[str, list[bytes]]:
    """Files of each format: two small photographs, and images of clothes."""
    import sklearn.datasets

    folder = Path(sklearn.datasets.__file__).parent / "images"
    photos = [Image.open(folder / name).resize((96, 64)) for name in ("china.jpg", "flower.jpg")]
    clothes = [Image.fromarray(pixels) for pixels in load_images("fashion-mini", "test").pixels[:4, :, :, 0]]
    found: dict[str, list[bytes]] = {}
    for name, (kind, options) in KINDS.items():
        found[name] = []
        for image in (*photos, *clothes):
            out, shown, more = io.BytesIO(), image, dict(options)
            if name == "palette.png":
                shown = image.convert("RGB").quantize(32)
            elif name == "sixteen.png":
                shown = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
            elif name == "animated.gif":
                more |= {"save_all": True, "append_images": [image.rotate(90), image.rotate(180)]}
            shown.save(out, kind, **more)  # type: ignore[arg-type]
            found[name].append(out.getvalue())
    return found


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _insert(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    data[place:place] = rng.randbytes(rng.choice((1, 4, 100)))


def _remove(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    del data[place : place + rng.choice((1, 4, 100))]


def _edit_header(data: bytearray, rng: random.Random) -> None:
    """Replace bytes near the beginning, such as image sizes, by extreme values."""
    for _ in range(rng.choice((1, 2, 4))):
        place = rng.randrange(4, min(64, len(data)))
        data[place : place + rng.choice((1, 2, 4))] = bytes([rng.choice(EXTREMES)]) * rng.choice((1, 2, 4))


def _claim(data: bytearray, rng: random.Random) -> None:
    """Change the image size in the header of the format, with a correct checksum for PNG."""
    width, height = (rng.choice((0, 1, 3, 5000, 13_000, 50_000, 65_535)) for _ in range(2))
    if data[:4] == b"\x89PNG":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif data[:3] == b"GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif data[:2] == b"II":
        start = struct.unpack_from("<I", data, 4)[0] + 2
        for place in range(start, len(data) - 12, 12):
            tag = struct.unpack_from("<H", data, place)[0]
            if tag in (256, 257):
                data[place + 8 : place + 12] = struct.pack("<I", width if tag == 256 else height)
    else:
        for marker in (b"\xff\xc0\x00", b"\xff\xc2\x00"):
            place = data.find(marker)
            if place >= 0:
                data[place + 5 : place + 9] = struct.pack(">HH", height, width)


def _swap(data: bytearray, rng: random.Random) -> None:
    """Overwrite a piece by a copy of another one."""
    size = min(rng.choice((8, 64, 512)), len(data) // 2)
    one, other = rng.randrange(len(data) - size), rng.randrange(len(data) - size)
    data[one : one + size] = data[other : other + size]


DAMAGE: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _cut, _insert, _remove, _edit_header, _claim, _swap,
)  # fmt: skip


def write_mutants(folder: Path, count: int, seed: int = 0) -> None:
    """Write ``count`` damaged files to bad/, and ``count`` + 1 undamaged ones to good/."""
    rng, files = random.Random(seed), originals()
    names = list(files)
    for kind in ("good", "bad"):
        (folder / kind).mkdir(parents=True)
    for i in range(count + 1):
        name = names[i % len(names)]
        (folder / "good" / f"{i:04}-{name}").write_bytes(rng.choice(files[name]))
    for i in range(count):
        name, damage = names[i % len(names)], DAMAGE[i // len(names) % len(DAMAGE)]
        data = bytearray(rng.choice(files[name]))
        damage(data, rng)
        (folder / "bad" / f"{i:04}{damage.__name__}-{name}").write_bytes(data)
