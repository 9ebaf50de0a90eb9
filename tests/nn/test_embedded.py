"""Rows that grow in the cache: those of the extractor, whatever happened on the way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from glf.data.photos import open_photos, read_one
from glf.data.sources import load
from glf.nn import embedded as store
from glf.nn.backbone import Backbone
from glf.nn.embedded import Embedded, Encoder, embedded
from glf.nn.features import extract
from machine import files_up_to, peak
from photos import BROKEN, write_photos

SIZE = 32


class Mean(nn.Module):
    """An encoder that is quick, and counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.seen = nn.AdaptiveAvgPool2d(4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.pool(x).flatten(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


def rows(folder: Path | str, cache: Path, module: nn.Module | None = None, size: int | None = SIZE) -> Embedded:
    encoder = Encoder("mean", module or Mean(), size, 3)
    return embedded(encoder, open_photos(str(folder), size=size), cache=cache, batch_size=4)


def test_they_are_the_extractors(folder, tmp_path):
    torch.manual_seed(0)
    backbone = Backbone("small_resnet", image_size=SIZE)
    found = rows(folder, tmp_path / "a", backbone)
    images = load(str(folder), size=SIZE, store="decode")
    expected = extract(backbone, images, cache=tmp_path / "b", size=SIZE)
    np.testing.assert_allclose(found.rows, expected, rtol=1e-4, atol=1e-5)
    assert len(found.paths) == 24
    assert all(Path(path).is_file() for path in found.paths)
    assert [Path(one.name).relative_to(folder).as_posix() for one in found.skipped] == list(BROKEN)
    assert found.paths == sorted(found.paths)


def test_the_second_time_nothing_is_encoded(folder, tmp_path):
    first = rows(folder, tmp_path)
    again = Mean()
    second = rows(folder, tmp_path, again)
    assert again.seen == 0
    assert np.array_equal(first.rows, second.rows)
    assert first.skipped == second.skipped


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_embedded import Mean, rows
class Dies(Mean):
    def forward(self, x):
        if self.seen >= 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
Dies.__name__ = Dies.__qualname__ = "Mean"  # the same encoder, as far as its weights and its looks go
rows(sys.argv[2], Path(sys.argv[3]), Dies())
"""


def test_after_kill_9_the_same_command_goes_on(folder, tmp_path):
    tests = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", KILLED, str(tests), str(folder), str(tmp_path)]
    assert subprocess.run(command, env=env).returncode == -signal.SIGKILL
    (place,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert json.loads((place / store.JOURNAL).read_text().splitlines()[-1])["rows"] == 8
    encoder = Mean()
    found = rows(folder, tmp_path, encoder)
    assert encoder.seen == 16
    assert np.array_equal(found.rows, rows(folder, tmp_path / "whole").rows)


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lambda place: (place / store.ROWS).write_bytes((place / store.ROWS).read_bytes()[:-5]), 4),
        (lambda place: (place / store.ROWS).open("ab").write(b"half a row"), 0),
        (lambda place: (place / store.JOURNAL).write_bytes((place / store.JOURNAL).read_bytes()[:-200]), 4),
        (lambda place: (place / store.JOURNAL).open("ab").write(b'{"seen": 9'), 0),
        (lambda place: (place / store.JOURNAL).unlink(), 24),
        (lambda place: (place / store.ROWS).unlink(), 24),
    ],
    ids=["rows cut", "rows too long", "journal cut", "journal half a line more", "no journal", "no rows"],
)
def test_what_the_journal_does_not_vouch_for_is_done_again(folder, tmp_path, spoil, seen):
    expected = np.array(rows(folder, tmp_path).rows)
    (place,) = (path for path in tmp_path.iterdir() if path.is_dir())
    spoil(place)
    encoder = Mean()
    assert np.array_equal(rows(folder, tmp_path, encoder).rows, expected)
    assert encoder.seen == seen


def small_squares(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{i:03}.png" for i in range(count)]
    for path, pixels in zip(paths, load("fashion-mini", "test").pixels[:count, :, :, 0], strict=True):
        Image.fromarray(pixels).save(path)
    return paths


def test_small_squares_are_kept_and_another_size_begins_anew(tmp_path):
    *_, last = small_squares(tmp_path / "set", 10)
    found = rows(tmp_path / "set", tmp_path / "a", size=28)
    assert (found.shape.side, found.shape.resized) == (28, False)
    query = read_one(last, found.shape)
    assert np.array_equal(query[..., 0], load("fashion-mini", "test").pixels[9, :, :, 0])
    Image.open(last).resize((60, 40)).save(last)
    encoder = Mean()
    found = rows(tmp_path / "set", tmp_path / "a", encoder, size=28)
    assert (found.shape.side, found.shape.resized) == (32, True)
    assert encoder.seen == 18, "eight of the ten were seen before the last had another size"
    assert np.array_equal(found.rows, rows(tmp_path / "set", tmp_path / "b", size=28).rows)


def test_an_array_and_a_named_set(tmp_path):
    images = load("fashion-mini")
    np.save(tmp_path / "few.npy", images.pixels[:50])
    found = rows(tmp_path / "few.npy", tmp_path / "cache", size=28)
    assert found.paths[:3] == ["0", "1", "2"]
    expected = Mean()(torch.from_numpy(images.pixels[:50]).permute(0, 3, 1, 2).float() / 255)
    np.testing.assert_allclose(found.rows, expected, atol=1e-6)


def test_a_file_that_could_not_be_read_is_tried_again(folder, tmp_path, monkeypatch):
    from glf.data.files import Files

    read = Files.read
    first = (folder / "boot" / "000.jpg").as_posix()

    def failing(self: Files, entry: object) -> bytes:
        if entry.name == "boot/000.jpg":  # type: ignore[attr-defined]
            raise OSError("the network is gone")
        return read(self, entry)  # type: ignore[arg-type]

    monkeypatch.setattr(Files, "read", failing)
    photos = open_photos(str(folder), size=SIZE)
    found = embedded(Encoder("mean", Mean(), SIZE, 3), photos, cache=tmp_path)
    assert first not in found.paths
    assert any("cannot be read: the network is gone" in one.why for one in found.skipped)
    monkeypatch.undo()
    found = embedded(Encoder("mean", Mean(), SIZE, 3), photos, cache=tmp_path)
    assert first in found.paths


def test_mostly_bad_files_are_an_error_that_names_some(tmp_path):
    write_photos(tmp_path / "set", count=2)
    with pytest.raises(ValueError, match=r"(?s)more than half of the 5 image files are bad:\n.*look at these") as error:
        rows(tmp_path / "set", tmp_path / "cache")
    assert "empty.png: empty file" in str(error.value)


def test_colour_for_an_encoder_of_grey(folder, tmp_path):
    with pytest.raises(ValueError, match="in colour, and grey-run was trained on grey ones: use a backbone for colour"):
        embedded(Encoder("grey-run", Mean(), SIZE, 1), open_photos(str(folder), size=SIZE), cache=tmp_path)


def test_a_full_disk_and_going_on(folder, tmp_path):
    with (
        files_up_to(2000),
        pytest.raises(OSError, match=r"could not be written \(File too large\): .*goes on where it"),
    ):
        rows(folder, tmp_path)
    encoder = Mean()
    found = rows(folder, tmp_path, encoder)
    assert 0 < encoder.seen < 24
    assert np.array_equal(found.rows, rows(folder, tmp_path / "whole").rows)


def test_everything_below_a_folder_counts_whatever_it_is_called(tmp_path):
    small_squares(tmp_path / "train", 3)
    small_squares(tmp_path / "other", 2)
    assert len(load(str(tmp_path))) == 3, "training takes what is called train"
    assert len(open_photos(str(tmp_path), size=28)) == 5


def test_memory_does_not_grow_with_the_images(tmp_path):
    """Photos of 1 MB decoded, of which a batch and what the threads hold are there at a time."""
    (tmp_path / "set").mkdir()
    pixels = load("fashion-mini", "test").pixels[:3, :, :, 0].transpose(1, 2, 0)
    Image.fromarray(pixels).resize((600, 600)).save(tmp_path / "set" / "000.jpg")
    for i in range(1, 400):
        os.link(tmp_path / "set" / "000.jpg", tmp_path / "set" / f"{i:03}.jpg")
    rows(write_photos(tmp_path / "before"), tmp_path / "cache")  # whatever the first call brings into memory
    with peak() as used:
        found = rows(tmp_path / "set", tmp_path / "cache", size=224)
    assert len(found.rows) == 400
    assert used.bytes < 250e6 < 400 * 600 * 600 * 3
