"""Cached features after kills, full disks and damage: only what the journal confirms is kept."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from glf.data.sources import find_source, load_images
from glf.nn.feature_cache import JOURNAL, FeatureCache
from glf.nn.features import Encoder, extract, extract_source
from machine import files_up_to
from photos import write_photos

FEATURES = "features.f32"

IMAGES = 24
LAST = -1  # as many images as there are in the last batch
Extract = Callable[[Path, Path, nn.Module], np.ndarray]


class Mean(nn.Module):
    """A quick encoder that counts the images it sees, and can fail at one of them."""

    def __init__(self, fail: Callable[[], Any] | None = None, after: int = 8) -> None:
        super().__init__()
        self.pool, self.seen, self.fail, self.after = nn.AdaptiveAvgPool2d(4), 0, fail, after

    def forward(self, x: Tensor) -> Tensor:
        if self.fail is not None and self.seen >= self.after:
            factor = self.fail()
            self.fail = None
            x = x * factor
        self.seen += len(x)
        return self.pool(x).flatten(1)


def from_images(folder: Path, cache: Path, encoder: nn.Module) -> np.ndarray:
    images = load_images(str(folder), size=32, store="decode", progress=False)
    return extract(encoder, images, cache=cache, size=32, batch_size=4)


def from_source(folder: Path, cache: Path, encoder: nn.Module) -> np.ndarray:
    source = find_source(str(folder), "all")
    return extract_source(Encoder("mean", encoder, 32, 3), source, cache=cache, batch_size=4).features


EXTRACTORS = pytest.mark.parametrize("extractor", [from_images, from_source])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), IMAGES)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_feature_cache as module
encoder = module.Mean(lambda: os.kill(os.getpid(), signal.SIGKILL))
getattr(module, sys.argv[2])(Path(sys.argv[3]), Path(sys.argv[4]), encoder)
"""


@EXTRACTORS
def test_after_kill_9_the_same_command_resumes(extractor: Extract, folder: Path, tmp_path: Path) -> None:
    tests = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", KILLED, str(tests), extractor.__name__, str(folder), str(tmp_path)]
    assert subprocess.run(command, env=env).returncode == -signal.SIGKILL
    (place,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert json.loads((place / JOURNAL).read_text().splitlines()[-1])["count"] == 8
    encoder = Mean()
    features = extractor(folder, tmp_path, encoder)
    assert encoder.seen == 16
    assert np.array_equal(features, extractor(folder, tmp_path / "whole", Mean()))


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("fail", "error"), [(lambda: np.nan, ValueError), (lambda: np.inf, ValueError), (interrupt, KeyboardInterrupt)]
)
@pytest.mark.parametrize("after", [0, 8])
@EXTRACTORS
def test_a_failure_keeps_whole_batches_only(
    extractor: Extract,
    fail: Callable[[], Any],
    error: type[BaseException],
    after: int,
    folder: Path,
    tmp_path: Path,
) -> None:
    encoder = Mean(fail, after)
    with pytest.raises(error):
        extractor(folder, tmp_path, encoder)
    assert len(list(tmp_path.iterdir())) == (after > 0), "nothing, not even a lock, if no batch was done"
    encoder = Mean()
    features = extractor(folder, tmp_path, encoder)
    assert encoder.seen == IMAGES - after
    assert np.array_equal(features, extractor(folder, tmp_path / "whole", Mean()))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def cut_in_the_last_batch(place: Path) -> None:
    """Cut the journal within the line of the last batch."""
    journal = (place / JOURNAL).read_bytes()
    (place / JOURNAL).write_bytes(journal[: journal.index(b'"count": 24') + 5])


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lambda place: (place / FEATURES).write_bytes((place / FEATURES).read_bytes()[:-5]), LAST),
        (lambda place: append(place / FEATURES, b"half a row"), 0),
        (cut_in_the_last_batch, LAST),
        (lambda place: append(place / JOURNAL, b'{"seen": 9'), 0),
        (lambda place: (place / JOURNAL).write_bytes(b'[1]\n{"seen": "many"}\n'), IMAGES),
        (lambda place: (place / JOURNAL).unlink(), IMAGES),
        (lambda place: (place / FEATURES).unlink(), IMAGES),
    ],
    ids=["features cut", "features too long", "journal cut", "half a line more", "no journal's lines", "no journal",
         "no features"],
)  # fmt: skip
@EXTRACTORS
def test_what_the_journal_does_not_confirm_is_computed_again(
    extractor: Extract, folder: Path, tmp_path: Path, spoil: Callable[[Path], Any], seen: int
) -> None:
    expected = np.array(extractor(folder, tmp_path, Mean()))
    (place,) = (path for path in tmp_path.iterdir() if path.is_dir())
    *_, before, after = (json.loads(line)["count"] for line in (place / JOURNAL).read_text().splitlines())
    spoil(place)
    encoder = Mean()
    assert np.array_equal(extractor(folder, tmp_path, encoder), expected)
    assert encoder.seen == (after - before if seen == LAST else seen)


@EXTRACTORS
def test_a_full_disk_and_the_next_attempt(extractor: Extract, folder: Path, tmp_path: Path) -> None:
    load_images(str(folder), size=32, store="decode")  # its notes are not what fills the disk
    with (
        files_up_to(2000),
        pytest.raises(OSError, match=r"could not be written \(File too large\): .*continues where it stopped"),
    ):
        extractor(folder, tmp_path, Mean())
    encoder = Mean()
    features = extractor(folder, tmp_path, encoder)
    assert 0 < encoder.seen < IMAGES
    assert np.array_equal(features, extractor(folder, tmp_path / "whole", Mean()))


def test_finished_features_need_no_right_to_write(folder: Path, tmp_path: Path) -> None:
    expected = np.array(from_source(folder, tmp_path, Mean()))
    (place,) = tmp_path.iterdir()
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path, place, *place.iterdir())}
    assert np.array_equal(from_source(folder, tmp_path, Mean()), expected)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path, place, *place.iterdir())} == before


def rows(*failing: int) -> Generator[np.ndarray, None, None]:
    """Twenty small images, at some of which reading fails."""
    for i in range(20):
        if i in failing:
            raise KeyboardInterrupt
        yield np.full((2, 2, 1), i, np.uint8)


def halved(batch: list[np.ndarray]) -> np.ndarray:
    return np.stack(batch).reshape(len(batch), -1)[:, :3] / 8


def test_half_precision_takes_half_the_room_and_resumes_alike(tmp_path: Path) -> None:
    whole = FeatureCache.open(tmp_path / "whole", bits=16)
    with whole.exclusively():
        whole.extend(rows(), 20, halved, 8, "features")
    assert whole.file.name == "features.f16"
    assert whole.file.stat().st_size == 20 * 3 * 2
    assert whole.features().dtype == np.float16
    assert np.array_equal(whole.features(), np.repeat(np.arange(20)[:, None] / 8, 3, axis=1))
    stopped = FeatureCache.open(tmp_path / "stopped", bits=16)
    with pytest.raises(KeyboardInterrupt), stopped.exclusively():
        stopped.extend(rows(13), 20, halved, 8, "features")
    with stopped.file.open("ab") as file:
        file.write(b"half a row")
    again = FeatureCache.open(tmp_path / "stopped", bits=16)
    assert (again.seen, again.width) == (8, 3)
    rest = rows()
    for _ in range(again.seen):
        next(rest)
    with again.exclusively():
        again.extend(rest, 20, halved, 8, "features")
    assert again.file.read_bytes() == whole.file.read_bytes()
    assert (again.folder / JOURNAL).read_bytes() == (whole.folder / JOURNAL).read_bytes()


def test_a_file_of_one_precision_is_not_read_as_the_other(tmp_path: Path) -> None:
    cached = FeatureCache.open(tmp_path / "cache", bits=16)
    with cached.exclusively():
        cached.extend(rows(), 20, halved, 8, "features")
    other = FeatureCache.open(tmp_path / "cache")
    assert other.seen == 0
