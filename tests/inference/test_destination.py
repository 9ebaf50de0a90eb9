"""Folders at URLs: a file has its name when it is whole, and what cannot be written is said in one line."""

import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from glf.inference.destination import Destination, open_destination


class ReadOnly(MemoryFileSystem):
    """A file system that one may list and not write."""

    protocol = "readonly"

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        if mode != "rb":
            raise PermissionError("Access Denied\nwith a second line")
        return super()._open(path, mode, **more)


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    return open_destination(tmp_path / "new" if request.param == "disk" else f"memory://test{tmp_path}")


def test_a_file_has_its_name_when_it_is_whole(place: Destination) -> None:
    assert place.names() == []
    place.check("a")
    with place.write("a") as file:
        file.write(b"one")
        assert place.names() == []
    assert place.names() == ["a"]
    with place.open("a") as file:
        assert file.read() == b"one"


def test_a_failure_leaves_what_was_there(place: Destination) -> None:
    with place.write("a") as file:
        file.write(b"one")

    def interrupted() -> None:
        with place.write("a") as file:
            file.write(b"two")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with place.open("a") as file:
        assert file.read() == b"one"
    left = place.system.ls(place.root) if place.system else list(Path(place.root).iterdir())
    assert len(left) == 1


def test_a_trial_leaves_nothing(place: Destination) -> None:
    place.check("a")
    assert not (place.system.find(place.root) if place.system else Path(place.root).exists())


def test_a_url_of_this_machine_is_a_folder(tmp_path: Path) -> None:
    assert open_destination(f"file://{tmp_path}/a") == Destination(f"{tmp_path}/a")


def test_a_url_that_may_not_be_written() -> None:
    fsspec.register_implementation("readonly", ReadOnly, clobber=True)
    with pytest.raises(ValueError, match=r"^readonly://.* cannot be written \(Access Denied\): choose another --out$"):
        open_destination("readonly://bucket/parts").check("a")


@pytest.mark.parametrize(
    ("url", "package", "message"),
    [
        (
            "s3://bucket/parts",
            "s3fs",
            r"needs a package that is not installed \(Install s3fs to access S3\): pip install",
        ),
        ("nothing://bucket", "", r"cannot be opened \(Protocol not known: nothing\)"),
        ("memory://bucket", "fsspec", r"is a URL, which needs fsspec: pip install 'glf\[parquet\]'"),
    ],
)
def test_a_url_that_cannot_be_opened(url: str, package: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if package:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=message) as error:
        open_destination(url)
    assert "\n" not in str(error.value)
