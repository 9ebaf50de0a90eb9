"""Every test here has its own cache and data root, real images, and no network."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from glf.data.sources import load_images


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GLF_DATA", str(tmp_path / "root"))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def local_only(self: socket.socket, address: Any) -> None:
        local = self.family == socket.AF_UNIX or address[0] == "127.0.0.1"  # worker processes; servers of tests
        assert local, f"the network was used: {address}"
        connect(self, address)

    def refuse(host: object, *arguments: Any, **options: Any) -> Any:
        assert host == "127.0.0.1", f"the network was used: {host}"
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def fashion() -> NDArray[np.uint8]:
    """(200, 28, 28) real grey images."""
    return load_images("fashion-mini", "test").pixels[:200, :, :, 0]


@pytest.fixture(scope="session")
def colour(fashion: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(66, 28, 28, 3): three of those images as the channels of one."""
    return np.stack([fashion[0:66], fashion[66:132], fashion[132:198]], axis=-1)


@pytest.fixture
def classes(tmp_path: Path, fashion: NDArray[np.uint8]) -> Path:
    """photos/{boot,coat,dress}/{0..3}.png"""
    for number, name in enumerate(("boot", "coat", "dress")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for i in range(4):
            Image.fromarray(fashion[4 * number + i]).save(folder / f"{i}.png")
    return tmp_path / "photos"
