"""Shards as webdataset reads them: original bytes, shuffled over shards, written atomically, resumed after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset as wds
from PIL import Image
from rich.console import Console

from glf.config.inference import ShardConfig
from glf.data.files import list_files
from glf.data.shards.schema import ShardIndex
from glf.data.sources import load_images
from glf.nn.prior import prior_features
from glf.sharding import shard
from photos import BROKEN, write_photos


def samples(folder: Path) -> list[dict[str, Any]]:
    """The samples that webdataset's own reader finds."""
    urls = sorted(str(path) for path in folder.glob("*.tar"))
    return list(wds.WebDataset(urls, shardshuffle=False, empty_check=False))


def written(data: object, out: Path, console: Console, **settings: Any) -> ShardIndex:
    return shard(ShardConfig(data=str(data), out=out, **settings), console)


def test_image_files_keep_their_bytes_and_labels(tmp_path: Path, console: Console) -> None:
    photos = write_photos(tmp_path / "camera")
    plan = written(photos, tmp_path / "out", console, per_shard=5)
    files = list_files(photos, "train")
    good = [i for i, entry in enumerate(files.entries) if entry.name not in BROKEN]
    found = samples(tmp_path / "out")
    assert (plan.images, plan.shards, len(found)) == (24, 5, 24)
    assert len({sample["__key__"] for sample in found}) == 24
    for sample in found:
        place = good[int(sample["__key__"])]
        assert sample["jpg"] == files.read(place)
        assert int(sample["cls"]) == files.targets[place]
    skipped = (tmp_path / "out" / "skipped.txt").read_text().splitlines()
    assert {line.split("\t")[0] for line in skipped} == set(BROKEN)
    assert "24 images in 5 shards, 3 files skipped" in console.file.getvalue()  # type: ignore[attr-defined]


def test_arrays_are_written_as_png_with_the_same_pixels(few_images: str, tmp_path: Path, console: Console) -> None:
    written(few_images, tmp_path / "out", console, per_shard=64)
    images = load_images(few_images)
    found = list(wds.WebDataset([str(tmp_path / "out" / "shard-000000.tar")], shardshuffle=False).decode("l8"))
    assert len(found) == 64
    for sample in found:
        row = int(sample["__key__"])
        assert np.array_equal(sample["png"], images.pixels[row, :, :, 0])
        assert sample["cls"] == images.targets[row]


def test_prior_features_are_stored_with_their_image(few_images: str, tmp_path: Path, console: Console) -> None:
    written(few_images, tmp_path / "out", console, prior="pixels", prior_width=8)
    rows = prior_features(
        ShardConfig(data=few_images, prior="pixels", prior_width=8), load_images(few_images), cache=tmp_path / "cache"
    )
    found = list(wds.WebDataset([str(tmp_path / "out" / "shard-000000.tar")], shardshuffle=False).decode())
    assert len(found) == len(rows) == 160
    for sample in found:
        assert sample["prior.npy"].dtype == np.float32
        assert np.array_equal(sample["prior.npy"], rows[int(sample["__key__"])])


def test_labels_can_be_left_out_and_classes_are_mixed(classes: Path, tmp_path: Path, console: Console) -> None:
    written(classes, tmp_path / "out", console, per_shard=6, seed=3)
    firsts = [int(sample["cls"]) for sample in samples(tmp_path / "out")][:6]
    assert len(set(firsts)) > 1, "in order, the first shard would have one and a half classes"
    plan = written(classes, tmp_path / "none", console, labels="none")
    assert not any("cls" in sample for sample in samples(tmp_path / "none"))
    assert (plan.labelled, plan.classes) == (False, ())


@pytest.mark.parametrize(("sizes", "side"), [([(128, 128)] * 3, 128), ([(128, 128), (128, 128), (128, 120)], None)])
def test_the_common_side_is_the_original_one_even_if_the_cache_would_resize(
    sizes: list[tuple[int, int]], side: int | None, tmp_path: Path, console: Console
) -> None:
    (tmp_path / "photos").mkdir()
    for i, size in enumerate(sizes):
        Image.new("RGB", size, (i, 2 * i, 3 * i)).save(tmp_path / "photos" / f"{i}.png")
    assert written(tmp_path / "photos", tmp_path / "out", console).side == side


def test_a_killed_command_resumes(tmp_path: Path, console: Console) -> None:
    pixels = load_images("fashion-mini").pixels[:3000]
    np.save(tmp_path / "few.npy", pixels)
    out, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "glf", "shard", str(tmp_path / "few.npy"), "--per-shard", "100", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (out / "shard-000002.tar").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    there = {path.name: path.stat().st_ino for path in out.glob("shard-*.tar")}
    assert 3 <= len(there) < 30
    assert not (out / "shards.json").exists()
    written(tmp_path / "few.npy", out, console, per_shard=100)
    assert f"{len(there)} of them there already" in console.file.getvalue()  # type: ignore[attr-defined]
    assert {name: (out / name).stat().st_ino for name in there} == there, "complete shards are kept"
    written(tmp_path / "few.npy", whole, console, per_shard=100)
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in out.iterdir())
    assert all((out / name).read_bytes() == (whole / name).read_bytes() for name in names)


def test_shards_with_other_settings_are_refused_or_replaced(few_images: str, tmp_path: Path, console: Console) -> None:
    out = tmp_path / "out"
    written(few_images, out, console, per_shard=40)
    with pytest.raises(ValueError, match=r"other settings \(per_shard, shards differ\): replace them with --overwrite"):
        written(few_images, out, console, per_shard=80)
    with pytest.raises(ValueError, match=r"other settings \(prior differ\)"):
        written(few_images, out, console, per_shard=40, prior="pixels")
    assert len(list(out.glob("*.tar"))) == 4
    written(few_images, out, console, per_shard=80, overwrite=True)
    assert len(samples(out)) == 160
    assert len(list(out.glob("*.tar"))) == 2


def test_only_shards_of_the_index_are_replaced(few_images: str, tmp_path: Path, console: Console) -> None:
    out = tmp_path / "out"
    written(few_images, out, console, per_shard=80)
    for name in ("shard-mine.tar", "shard-000003.tar", ".backup.2019"):
        (out / name).write_text("years of work")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(ValueError, match=r"shard-000003\.tar is not among the shards of"):
        written(few_images, out, console, per_shard=40, overwrite=True)
    with pytest.raises(ValueError, match="other settings"):
        written(few_images, out, console, per_shard=60)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    written(few_images, out, console, per_shard=60, overwrite=True)
    assert [path.name for path in out.iterdir() if path.read_bytes() == b"years of work"] == [
        path.name for path in out.iterdir() if path.name in ("shard-mine.tar", "shard-000003.tar", ".backup.2019")
    ]
    assert len(list(out.iterdir())) == 3 + 3 + 2, "three shards, three files of the user's, the index, skipped.txt"


def test_what_cannot_be_a_folder_is_refused_before_images_are_read(tmp_path: Path, console: Console) -> None:
    (tmp_path / "file").write_text("years of work")
    for out in (Path(os.devnull), tmp_path / "file"):
        with pytest.raises(ValueError, match="is not a folder: choose another --out"):
            written(tmp_path / "no images here", out, console)


@pytest.mark.parametrize("name", ["thesis.tex", "shard-000000.tar", "skipped.txt"])
def test_a_folder_with_other_files_is_left_alone(name: str, few_images: str, tmp_path: Path, console: Console) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("years of work")
    with pytest.raises(ValueError, match="not a folder of shards"):
        written(few_images, tmp_path / "out", console, overwrite=True)
    assert (tmp_path / "out" / name).read_text() == "years of work"


def test_mistakes_are_explained(few_images: str, tmp_path: Path, console: Console) -> None:
    with pytest.raises(ValueError, match="per_shard must be at least 1, got 0"):
        written(few_images, tmp_path / "out", console, per_shard=0)
    written(few_images, tmp_path / "out", console)
    with pytest.raises(ValueError, match="is a stream of shards, which `glf pretrain` and `glf embed --part` read"):
        written(tmp_path / "out", tmp_path / "again", console)
