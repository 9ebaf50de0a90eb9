"""Decoding of image files of every kind."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from glf.data import decode as module
from glf.data.decode import EXTENSIONS, decode

Array = NDArray[np.uint8]


def saved(image: Image.Image | Array, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("BMP", {}), ("PPM", {}), ("GIF", {})],
)
def test_lossless_formats_give_the_same_pixels(
    fashion: Array, colour: Array, kind: str, options: dict[str, object]
) -> None:
    grey = decode(saved(fashion[0], kind, **options))
    np.testing.assert_array_equal(grey[..., 0], fashion[0])
    if kind in ("WEBP", "GIF"):  # formats without grey, only RGB and palettes
        assert grey.shape == (28, 28, 3)
    else:
        assert grey.shape == (28, 28, 1)
    if kind != "GIF":
        np.testing.assert_array_equal(decode(saved(colour[0], kind, **options)), colour[0])


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg(fashion: Array, mode: str) -> None:
    image = Image.fromarray(fashion[0]).resize((112, 112)).convert(mode)
    pixels = decode(saved(image, "JPEG", quality=95))
    assert pixels.shape == (112, 112, 1 if mode == "L" else 3)
    expected = np.asarray(image.convert("L" if mode == "L" else "RGB")).reshape(pixels.shape)
    assert np.abs(pixels.astype(int) - expected).mean() < 4


def test_palette_and_bilevel(colour: Array, fashion: Array) -> None:
    palette = Image.fromarray(colour[0]).quantize(16)
    np.testing.assert_array_equal(decode(saved(palette, "PNG")), np.asarray(palette.convert("RGB")))
    two = Image.fromarray(fashion[0] > 99)
    np.testing.assert_array_equal(decode(saved(two, "PNG"))[..., 0], 255 * (fashion[0] > 99))


def test_transparency_becomes_white(colour: Array, fashion: Array) -> None:
    alpha = np.zeros((28, 28), np.uint8)
    alpha[:14], alpha[14:20] = 255, 128
    pixels = decode(saved(np.dstack([colour[0], alpha]), "PNG"))
    assert pixels.shape == (28, 28, 3)
    np.testing.assert_array_equal(pixels[:14], colour[0, :14])
    assert (pixels[20:] == 255).all()
    half = colour[0, 14:20] * (128 / 255) + 255 * (127 / 255)
    assert np.abs(pixels[14:20] - half).max() <= 1

    grey = decode(saved(Image.merge("LA", [Image.fromarray(fashion[0]), Image.fromarray(alpha)]), "PNG"))
    assert grey.shape == (28, 28, 1)
    np.testing.assert_array_equal(grey[:14, :, 0], fashion[0, :14])
    assert (grey[20:] == 255).all()

    keyed = decode(saved(fashion[0], "PNG", transparency=0))  # the background, value 0, is transparent
    assert keyed.shape == (28, 28, 1)
    np.testing.assert_array_equal(keyed[..., 0], np.where(fashion[0] == 0, 255, fashion[0]))


def test_sixteen_bits_and_floats(fashion: Array) -> None:
    wide = fashion[0].astype(np.uint16) * 257
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(decode(saved(Image.fromarray(wide), kind))[..., 0], fashion[0])
    unit = (fashion[0] / 255).astype(np.float32)
    np.testing.assert_array_equal(decode(saved(Image.fromarray(unit), "TIFF"))[..., 0], fashion[0])
    with pytest.raises(ValueError, match=r"mode F with values from 0\.0 to 2\.0"):
        decode(saved(Image.fromarray(unit / unit.max() * 2), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(fashion: Array, orientation: int) -> None:
    undo: dict[int, Callable[[Array], Array]] = {  # what a camera held that way stores
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: np.transpose,
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).T,
        8: lambda a: np.rot90(a, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = fashion[0][:20]
    for kind in ("PNG", "TIFF"):
        stored = np.ascontiguousarray(undo[orientation](upright))
        np.testing.assert_array_equal(decode(saved(stored, kind, exif=exif))[..., 0], upright)


def test_broken_exif_does_not_lose_the_image(fashion: Array) -> None:
    pixels = decode(saved(fashion[0], "PNG", exif=b"Exif\x00\x00garbage"))
    np.testing.assert_array_equal(pixels[..., 0], fashion[0])


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(fashion: Array, kind: str) -> None:
    frames = [Image.fromarray(image) for image in fashion[:3]]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # type: ignore[attr-defined]
    np.testing.assert_array_equal(decode(data)[..., 0], fashion[0])


@pytest.mark.parametrize(("width", "height"), [(120, 60), (60, 120), (60, 60), (240, 60), (100, 3)])
def test_the_long_side_is_cropped_half_way_and_the_rest_squeezed(colour: Array, width: int, height: int) -> None:
    image = Image.fromarray(colour[0]).resize((width, height), Image.Resampling.BICUBIC)
    pixels = decode(saved(image, "PNG"), side=30)
    mean = (width * height) ** 0.5
    left, top = max(0, round((width - mean) / 2)), max(0, round((height - mean) / 2))
    part = image.crop((left, top, width - left, height - top))
    assert part.width / part.height == pytest.approx((width / height) ** 0.5, rel=0.1)
    expected = np.asarray(part.resize((30, 30), Image.Resampling.BILINEAR))
    assert pixels.shape == (30, 30, 3)
    assert np.abs(pixels.astype(int) - expected).max() <= 2


def test_an_image_of_the_right_size_is_not_resampled(colour: Array) -> None:
    np.testing.assert_array_equal(decode(saved(colour[0], "PNG"), side=28), colour[0])


def test_the_ends_of_a_panorama_are_half_kept() -> None:
    """A marker at three eighths of the width from the centre of a 4:1 image is cut off, one at an eighth is not."""
    for place, visible in ((1 / 8, True), (3 / 8, False)):
        wide = np.zeros((40, 160, 3), np.uint8)
        middle = 80 + round(place * 160)
        wide[:, middle - 4 : middle + 4] = 255
        assert (decode(saved(wide, "PNG"), side=40).max() > 200) == visible


@pytest.mark.parametrize("size", [(1472, 960), (400, 272), (200, 130)])
def test_scaled_decoding_of_jpeg_hardly_differs(fashion: Array, size: tuple[int, int]) -> None:
    photo = Image.fromarray(np.tile(fashion[0], (2, 3))).resize(size, Image.Resampling.BICUBIC)
    fast = decode(saved(photo, "JPEG", quality=95), side=64)
    exact = decode(saved(photo, "PNG"), side=64)
    assert np.abs(fast.astype(int) - exact).mean() < 1  # the crop begins at a whole pixel of the fraction


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize(
    ("size", "side", "decoded"),
    [
        ((2000, 2000), 64, (250, 250)),  # an eighth is the smallest fraction of libjpeg
        ((2000, 1500), 256, (1000, 750)),
        ((1500, 2000), 100, (375, 500)),
        ((500, 500), 256, (500, 500)),  # half of it would be less than twice the side
    ],
)
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(
    colour: Array,
    size: tuple[int, int],
    side: int,
    decoded: tuple[int, int],
    grey: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    photo = Image.fromarray(colour[0]).resize(size, Image.Resampling.BICUBIC).convert("L" if grey else "RGB")
    seen, flat = list[tuple[int, int]](), module._flat
    monkeypatch.setattr(module, "_flat", lambda image: [seen.append(image.size), flat(image)][1])
    fast = decode(saved(photo, "JPEG", quality=95), side=side)
    exact = decode(saved(photo, "PNG"), side=side)
    assert seen == [decoded, size]
    assert fast.shape == exact.shape == (side, side, 1 if grey else 3)
    assert np.abs(fast.astype(int) - exact).mean() < 1


def test_postscript_is_not_an_image() -> None:
    """PIL would pass PostScript to Ghostscript."""
    with pytest.raises(ValueError, match="not an image in a format among JPEG, PNG"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")


def test_extensions_are_lower_case_and_dotted() -> None:
    assert all(extension == extension.lower() and extension.startswith(".") for extension in EXTENSIONS)
