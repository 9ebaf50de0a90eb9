"""Checkpoints are written atomically, refused if another version wrote them, and never execute code."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from glf.checkpoint import CHECKPOINT_SCHEMA, load_checkpoint, save_checkpoint
from glf.files import partial_path


def test_round_trip_and_schema(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.ckpt"
    save_checkpoint({"x": torch.arange(3), "n": 1}, path)
    loaded = load_checkpoint(path)
    assert loaded["x"].tolist() == [0, 1, 2]
    assert loaded["glf_schema"] == CHECKPOINT_SCHEMA
    assert [p.name for p in path.parent.iterdir()] == ["a.ckpt"]  # nothing temporary is left


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    save_checkpoint({"n": 1}, path)
    before = path.read_bytes()
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        save_checkpoint({"n": lambda: None}, path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full to fill a disk")
def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ckpt"
    save_checkpoint({"n": 1}, path)
    before = path.read_bytes()
    partial_path(path).symlink_to("/dev/full")  # where the temporary file would be written
    with pytest.raises(OSError, match=r"could not be written.*No space left.*intact"):
        save_checkpoint({"x": torch.zeros(10_000)}, path)
    assert path.read_bytes() == before


def _other_schema(path: Path) -> None:
    torch.save({"glf_schema": 99}, path)


def _earlier_schema(path: Path) -> None:
    torch.save({"glf_schema": 1}, path)


def _foreign(path: Path) -> None:
    torch.save({"state_dict": {}}, path)


def _truncated(path: Path) -> None:
    save_checkpoint({"x": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:500])


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (os.environ["EVIL"],))


def _evil(path: Path) -> None:
    torch.save({"glf_schema": CHECKPOINT_SCHEMA, "x": Evil()}, path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_other_schema, "has schema 99, but this version of glf reads schema 2"),
        (_earlier_schema, r"has schema 1, .*train it again with --overwrite \(its backbone can still be evaluated\)"),
        (_foreign, "is not a checkpoint of glf"),
        (_truncated, "cannot be read as a checkpoint"),
        (_evil, "cannot be read as a checkpoint"),
    ],
)
def test_bad_files_are_refused(make: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "executed"))
    assert callable(make)
    make(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=message):
        load_checkpoint(tmp_path / "a.ckpt")
    assert not (tmp_path / "executed").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "a.ckpt")
