"""Damaged images are loaded or listed: no crash, no hang, bounded memory, none lost silently."""

import io
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from PIL import Image

from mutants import write_mutants

LOAD = """
import json, resource, sys, warnings
import numpy as np
warnings.simplefilter("error")  # no warning of PIL may get through
from glf.data.sources import load_images
found = {}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for store in ("pack", "decode"):
    images = load_images(sys.argv[1], store=store, size=28, progress=False)
    pixels = images.pixels[:]
    found[store] = {"skipped": images.skipped, "count": len(pixels), "sum": int(pixels.astype(np.int64).sum())}
    found[store] |= {"targets": np.bincount(images.targets).tolist(), "key": images.key}
found["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
print(json.dumps(found))
"""


def readable(data: bytes) -> bool:
    """Whether PIL alone, with all its warnings, decodes it to an image of limited size."""
    formats = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data), formats=formats)
            if image.format == "JPEG" and "progressive" not in image.info:
                image.draft(None, (64, 64))
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or 0):
                return False
            image.load()
            if not image.mode.startswith(("I", "F")):
                image.convert("RGBA" if "transparency" in image.info else "RGB")
        except Exception:  # PIL raises almost anything
            return False
        return True


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_images_are_loaded_or_listed(count: int, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_mutants(folder, count)
    command = [sys.executable, "-c", LOAD, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + count)  # longer means that it hangs
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["pack"] == found["decode"]
    skipped = dict(found["pack"]["skipped"])
    assert found["pack"]["count"] + len(skipped) == 2 * count + 1
    assert found["pack"]["targets"] == [count - len(skipped), count + 1], "every good one is there"
    assert all(why and "0x" not in why for why in skipped.values())
    good_after_all = {f"bad/{path.name}" for path in (folder / "bad").iterdir() if readable(path.read_bytes())}
    assert skipped.keys() == {f"bad/{path.name}" for path in (folder / "bad").iterdir()} - good_after_all
    assert count / 5 < len(skipped) < count, "some damage shows, and some does not"
    assert found["megabytes"] < 1500
