"""Data sets of the Hub, by the real library ``datasets`` and a stand-in of the Hub's endpoints on this machine."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pytest
from numpy.typing import NDArray

from glf.data.shards.index import is_stream
from glf.data.sources import find_source, load_images
from glf.data.tables import hub
from hub import hub_server


@pytest.fixture
def requests(saved: datasets.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A Hub with one data set, user/clothes, and a machine that has none; the requests so far."""
    data = tmp_path / "hub" / "user" / "clothes" / "data"
    data.mkdir(parents=True)
    for split, part in (("train", saved), ("test", saved.select([3, 8]))):
        part.to_parquet(data / f"{split}-00000-of-00001.parquet")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    hub._ask.cache_clear()
    with hub_server(tmp_path / "hub") as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield asked
    hub._ask.cache_clear()


def test_nothing_is_fetched_unless_asked_and_then_once(
    requests: list[str], tmp_path: Path, fashion: NDArray[np.uint8]
) -> None:
    with pytest.raises(ValueError, match=r"hf:user/clothes is not on this machine.*--download fetches it"):
        load_images("hf:user/clothes")
    assert not requests
    images = load_images("hf:user/clothes", download=True)
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[:12])
    assert images.classes == ("boot", "coat", "dress")
    assert any(".parquet" in line for line in requests)

    requests.clear()
    shutil.rmtree(tmp_path / "hub")
    again = load_images("hf:user/clothes", "test")  # another process of datasets, offline
    np.testing.assert_array_equal(again.pixels[..., 0], fashion[[3, 8]])
    assert again.targets.tolist() == [0, 2]
    assert find_source("hf:user/clothes:test", "train").path(1) == "hf:user/clothes/test/1.png"
    assert len(find_source("hf:user/clothes?label=none", "all")) == 14
    with pytest.raises(ValueError, match=r"no split 'tset' - did you mean 'test'.*it has train, test"):
        find_source("hf:user/clothes:tset", "train")
    assert not requests


def test_a_name_that_the_hub_does_not_have(requests: list[str]) -> None:
    with pytest.raises(ValueError, match=r"hf:user/cloths cannot be loaded .*doesn't exist on the Hub.*check the name"):
        find_source("hf:user/cloths", "train", download=True)
    assert requests


@pytest.mark.parametrize("data", ["hf:", "hf:a/b/c", "hf:a/b:train[:10]", "hf:../x", "hf:a b"])
def test_what_is_no_name_is_never_asked_for(data: str, requests: list[str]) -> None:
    assert not is_stream(data)
    with pytest.raises(ValueError, match="is no data set of the Hub: expected hf:user/name"):
        find_source(data, "train", download=True)
    assert not requests


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the library datasets: pip install 'glf\[hf\]'"):
        find_source("hf:user/clothes", "train", download=True)


def test_a_library_that_fails_is_one_line(requests: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "path" / "datasets"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import os; os._exit(9)")
    monkeypatch.syspath_prepend(str(broken.parent))
    with pytest.raises(ValueError, match="hf:user/clothes: the library datasets failed: exit code 9"):
        find_source("hf:user/clothes", "train")
