"""glf.Embedder on batches of paths, bytes and arrays; tests/inference/test_ray.py has it in Ray Data."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import glf
from glf.nn.backbone import Backbone
from glf.nn.features import SourceFeatures
from glf.nn.weights import save_backbone
from photos import write_photos


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    save_backbone(Backbone("small_resnet", image_size=32), place / "b.safetensors")
    write_photos(place / "photos")
    return place


@pytest.fixture
def found(place: Path, tmp_path: Path) -> SourceFeatures:
    out = tmp_path / "e.npy"
    result = glf.embed(run=str(place / "b.safetensors"), data=str(place / "photos"), out=out, device="cpu")
    assert isinstance(result, SourceFeatures)
    return result


@pytest.fixture
def embedder(place: Path) -> glf.Embedder:
    return glf.Embedder(place / "b.safetensors", device="cpu")


def test_embeddings_of_paths_and_of_bytes_are_those_of_glf_embed(embedder: glf.Embedder, found: SourceFeatures) -> None:
    paths = np.array(found.paths, object)
    batch = embedder({"path": paths, "more": np.arange(24)})
    assert np.array_equal(batch["embedding"], found.features), "to the last bit"
    assert batch["embedding"].dtype == np.float32
    assert (batch["more"].tolist(), set(batch["error"])) == (list(range(24)), {""})
    data = np.array([Path(path).read_bytes() for path in found.paths], object)
    assert np.array_equal(embedder({"bytes": data})["embedding"], found.features)


def test_a_table_keeps_its_columns(embedder: glf.Embedder, found: SourceFeatures) -> None:
    table = embedder(pa.table({"path": found.paths, "index": range(24)}))
    assert table.column_names == ["path", "index", "embedding", "error"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 256)
    assert np.array_equal(np.array(table["embedding"].to_pylist(), np.float32), found.features)


def test_arrays(embedder: glf.Embedder, place: Path) -> None:
    rng = np.random.default_rng(0)
    images = np.empty(3, object)
    images[:] = [rng.integers(0, 256, (side, 32, channels), np.uint8) for side, channels in ((32, 3), (40, 3), (32, 1))]
    batch = embedder({"image": images})
    expected = glf.load(place / "b.safetensors")(list(images)).numpy()
    np.testing.assert_allclose(batch["embedding"], expected, rtol=1e-4, atol=1e-5)


def test_images_that_cannot_be_read_have_a_reason(embedder: glf.Embedder, place: Path) -> None:
    photos = place / "photos"
    paths = [photos / "boot" / "000.jpg", photos / "coat" / "empty.png", photos / "no.jpg", photos]
    batch = embedder({"path": np.array([str(path) for path in paths], object)})
    assert np.isnan(batch["embedding"]).all(1).tolist() == [False, True, True, True]
    assert batch["error"][:2].tolist() == ["", "empty file"]
    assert "No such file" in batch["error"][2]
    only_bad = embedder({"path": np.array([str(photos)], object)})
    assert only_bad["embedding"].shape == (1, 256)
    assert "an array of float64" in embedder({"image": [np.zeros((2, 2, 3))]})["error"][0]


def test_an_empty_batch(embedder: glf.Embedder) -> None:
    assert embedder({"path": np.array([], object)})["embedding"].shape == (0, 256)


def test_a_batch_without_images(embedder: glf.Embedder, place: Path) -> None:
    with pytest.raises(ValueError, match="the columns a, b: images are expected in one of path, bytes, image"):
        embedder({"a": np.zeros(2), "b": np.zeros(2)})
    with pytest.raises(ValueError, match="images are expected in 'photo'"):
        glf.Embedder(place / "b.safetensors", column="photo")({"path": np.zeros(2)})
