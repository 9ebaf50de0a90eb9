"""glf embed, search and outliers on a folder of photos, with real weights and broken files."""

import csv
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console
from torch import nn

from glf.config.inference import EmbedConfig, OutliersConfig, SearchConfig
from glf.data.sources import load_images
from glf.files import sidecar
from glf.inference.embedding import embed
from glf.inference.image_model import load
from glf.inference.image_search import read_query, search
from glf.inference.outlier_search import outliers
from glf.nn.backbone import Backbone
from glf.nn.features import Encoder, SourceFeatures
from glf.nn.weights import save_backbone
from machine import files_up_to
from photos import write_photos

LITE = "timm:tf_efficientnet_lite0"  # with its published weights, from the package of the extra `prior`
SIZE = 64


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 good files and three broken ones, a copy of one photo in another size, a name that is not ASCII."""
    folder = write_photos(tmp_path_factory.mktemp("holiday"))
    with Image.open(folder / "coat" / "005.jpg") as image:
        image.resize((170, 171)).save(folder / "Ünïcode, with “quotes”.png")
    return folder


def config(photos: Path, **settings: Any) -> EmbedConfig:
    return EmbedConfig(run=LITE, data=str(photos), image_size=SIZE, **settings)


def read(path: Path) -> tuple[list[str], np.ndarray, np.ndarray | None]:
    """Paths, features and map of a file of any of the three formats."""
    if path.suffix == ".npy":
        beside = json.loads(sidecar(path, "json").read_text())
        points = np.array(beside["map"]) if "map" in beside else None
        return beside["paths"], np.load(path, allow_pickle=False), points
    if path.suffix == ".csv":
        with open(path, newline="", encoding="utf-8") as file:
            header, *lines = csv.reader(file)
        width = len([name for name in header if name.startswith("f")])
        values = np.array([[float(value) for value in line[1:]] for line in lines], np.float32)
        return [line[0] for line in lines], values[:, :width], values[:, width:] if "map_x" in header else None
    table = pq.read_table(path)
    points = np.stack([table["map_x"], table["map_y"]], 1) if "map_x" in table.column_names else None
    return table["path"].to_pylist(), np.array(table["embedding"].to_pylist(), np.float32), points


def embedded_into(photos: Path, out: Path, console: Console, **settings: Any) -> SourceFeatures:
    return embed(config(photos, out=out, **settings), console)


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
def test_every_format_has_the_same_content(photos, tmp_path, console, kind):
    out = tmp_path / "deep" / f"embeddings.{kind}"
    found = embedded_into(photos, out, console, map=True)
    paths, features, points = read(out)
    assert paths == found.paths
    assert len(paths) == 25
    assert str(photos / "Ünïcode, with “quotes”.png") in paths
    assert np.array_equal(features, found.features), "to the last bit"
    assert points.shape == (25, 2)
    assert np.isfinite(points).all()
    said = console.file.getvalue()
    assert "25 images, 1280 features each" in said
    assert "skipped   3 files, first" in said
    assert "map       by t-SNE" in said
    skipped = sidecar(out, "skipped.txt").read_text().splitlines()
    assert len(skipped) == 3
    assert skipped[1].endswith("empty.png\tempty file")
    assert not list(out.parent.glob(".*")), "nothing half-written is left"


def test_an_incomplete_file_never_replaces_a_complete_one(photos, tmp_path, console):
    out = tmp_path / "e.csv"
    embedded_into(photos, out, console)
    before = out.read_bytes()
    with (
        files_up_to(20_000),
        pytest.raises(OSError, match=r"e\.csv could not be written \(File too large\): free some space"),
    ):
        embedded_into(photos, out, console)
    assert out.read_bytes() == before
    with files_up_to(20_000), pytest.raises(OSError, match=r"e\.npy could not be written"):
        embedded_into(photos, tmp_path / "e.npy", console)
    assert not (tmp_path / "e.npy").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [("e.txt", "should end with one of .npy, .csv, .parquet"), ("e", "should end with"), ("d.csv", "is a folder")],
)
def test_a_wrong_output_file_is_reported_before_any_work(photos, tmp_path, monkeypatch, out, message):
    (tmp_path / "d.csv").mkdir()
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=message):
        embed(config(photos, out=tmp_path / out))
    assert not (tmp_path / "cache").exists()


def test_parquet_without_pyarrow_names_the_extra(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("glf.inference.writers.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'glf\[parquet\]', or choose \.npy or \.csv"):
        embed(config(photos, out=tmp_path / "e.parquet"))


# --- search


def test_a_copy_is_found_first_for_each_of_several_queries(photos, tmp_path, console):
    queries = [str(photos / "Ünïcode, with “quotes”.png"), str(photos / "boot" / "002.jpg")]
    settings = SearchConfig(run=LITE, images=(*queries, str(photos)), image_size=SIZE, k=3, out=tmp_path / "f.csv")
    hits = search(settings, console)
    assert [(hit.query, hit.rank) for hit in hits] == [(query, rank) for query in queries for rank in (1, 2, 3)]
    for first, query in zip(hits[::3], queries, strict=True):
        assert first.path == query, "the image itself is in the folder"
        assert first.similarity == pytest.approx(1, abs=1e-5)
    assert hits[1].path == str(photos / "coat" / "005.jpg"), "then its copy in another size"
    found = embedded_into(photos, tmp_path / "e.npy", console)
    unit = found.features / np.linalg.norm(found.features, axis=1, keepdims=True)
    mine = unit @ unit[found.paths.index(queries[0])]
    np.testing.assert_allclose([hit.similarity for hit in hits[:3]], np.sort(mine)[::-1][:3], atol=1e-5)
    with open(tmp_path / "f.csv", newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["query", "rank", "similarity", "path"]
    assert [line[3] for line in lines] == [hit.path for hit in hits]


def test_more_neighbours_than_images(photos, console):
    images = (str(photos / "boot" / "002.jpg"), str(photos))
    assert len(search(SearchConfig(run=LITE, images=images, image_size=SIZE, k=1000), console)) == 25


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("nowhere.jpg", "no image at .*nowhere.jpg: queries are files, and the folder to search comes last"),
        ("boot", "no image at .*boot: queries are files"),
        ("coat/text.jpg", r"text\.jpg cannot be read as an image \(not an image .*\): give another file"),
        ("coat/empty.png", r"empty\.png cannot be read as an image \(empty file\)"),
    ],
)
def test_a_query_that_is_not_an_image(photos, console, query, message):
    with pytest.raises((ValueError, OSError), match=message):
        search(SearchConfig(run=LITE, images=(str(photos / query), str(photos)), image_size=SIZE), console)


def test_a_query_is_decoded_like_the_searched_images(tmp_path):
    pixels = load_images("fashion-mini", "test").pixels[9, :, :, 0]
    Image.fromarray(pixels).save(tmp_path / "a.png")
    query = read_query(tmp_path / "a.png", Encoder("colour", nn.Identity(), 28, 3))
    assert query.shape == (28, 28, 3), "grey fills all channels"
    assert all(np.array_equal(query[..., channel], pixels) for channel in range(3))


def test_a_query_without_a_folder():
    with pytest.raises(ValueError, match=r"search needs queries and a folder: glf search runs/a query\.jpg photos/"):
        search(SearchConfig(run="runs/a", images=("query.jpg",)))


# --- outliers and near-duplicates


def test_an_outlier_and_near_duplicates(tmp_path, console):
    """A bag among sixty boots, with pixels as features; one boot is there in two sizes."""
    folder = tmp_path / "set"
    folder.mkdir()
    clothes = load_images("fashion-mini", "test")
    boots, bags = (clothes.pixels[clothes.targets == label][:60, :, :, 0] for label in (9, 8))
    for i, pixels in enumerate(boots):
        Image.fromarray(pixels).resize((140, 140)).save(folder / f"{i:03}.png")
    Image.fromarray(boots[5]).resize((90, 90)).save(folder / "copy.jpg", quality=80)
    Image.fromarray(bags[0]).resize((120, 120)).save(folder / "odd.png")
    settings = OutliersConfig(run="pixels", data=str(folder), out=tmp_path / "o.csv", count=3, similarity=0.99)
    images = outliers(settings, console)
    assert len(images) == 62
    assert str(folder / "odd.png") in [one.path for one in images if one.outlier]
    assert [one.outlier for one in images] == [True] * 3 + [False] * 59
    groups: dict[int | None, set[str]] = {}
    for one in images:
        groups.setdefault(one.group, set()).add(Path(one.path).name)
    assert {"005.png", "copy.jpg"} in groups.values()
    said = console.file.getvalue()
    assert "likely outliers" in said
    assert f"{len(groups) - 1} groups" in said
    with open(tmp_path / "o.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["path"] for line in lines] == [one.path for one in images]
    assert [float(line["entropy"]) for line in lines] == sorted(
        (float(line["entropy"]) for line in lines), reverse=True
    )


# --- which model


def test_the_backbone_of_a_run(small_run: Callable[..., Path], tmp_path, console):
    """A backbone for grey images of 28 px embeds such arrays and refuses colour photos."""
    run = small_run()
    np.save(tmp_path / "few.npy", load_images("fashion-mini", "test").pixels[:20])
    settings = EmbedConfig(run=str(run), data=str(tmp_path / "few.npy"), out=tmp_path / "e.npy")
    assert embed(settings, console).features.shape == (20, 256)
    with pytest.raises(ValueError, match="are in colour"):
        embed(replace(settings, data=str(write_photos(tmp_path / "colour"))), console)
    with pytest.raises(ValueError, match="--weights and --image-size only apply to timm: and torchvision: models"):
        embed(replace(settings, image_size=32), console)


def test_a_file_of_weights_and_of_a_backbone(photos, tmp_path, console):
    import torch

    torch.manual_seed(0)
    backbone = Backbone("timm:test_resnet", image_size=160)
    save_backbone(backbone, tmp_path / "b.safetensors")
    found = embed(EmbedConfig(run=str(tmp_path / "b.safetensors"), data=str(photos), out=tmp_path / "e.npy"), console)
    assert found.features.shape == (25, backbone.width)
    torch.save({"state_dict": {f"backbone.{k}": v for k, v in backbone.body.state_dict().items()}}, tmp_path / "w.ckpt")
    other = embed(
        EmbedConfig(run="timm:test_resnet", weights=tmp_path / "w.ckpt", data=str(photos), out=tmp_path / "f.npy"),
        console,
    )
    assert other.features.shape == found.features.shape


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run": "no/such/run"}, "no backbone at .*: is no/such/run the directory of a finished run"),
        ({"run": "timm:resnet999"}, "unknown timm model 'resnet999' - did you mean"),
        ({"data": "no/such/folder"}, "no such file or folder"),
        ({"device": "tpu"}, "unknown device 'tpu': auto, cpu, gpu or mps"),
    ],
)
def test_mistakes_name_the_next_step(photos, tmp_path, console, settings, message):
    base = EmbedConfig(run="pixels", data=str(photos), out=tmp_path / "e.npy")
    with pytest.raises((ValueError, OSError), match=message):
        embed(replace(base, **settings), console)
    assert not (tmp_path / "e.npy").exists()


# --- feature maps


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_feature_maps_are_those_of_the_loaded_model(photos, tmp_path, console, kind):
    out = tmp_path / f"maps.{kind}"
    found = embedded_into(photos, out, console, features="map")
    assert found.features.shape == (25, 2, 2, 1280)
    if kind == "npy":
        written = np.load(out, mmap_mode="r", allow_pickle=False)
        assert json.loads(sidecar(out, "json").read_text())["paths"] == found.paths
    else:
        table = pq.read_table(out)
        assert table["path"].to_pylist() == found.paths
        shape = json.loads(table.schema.metadata[b"shape"])
        flat = table["feature_map"].combine_chunks().flatten().to_numpy()
        written = flat.reshape(len(table), *shape)
    assert written.dtype == np.float16
    assert np.array_equal(written, found.features)
    model = load(LITE, image_size=SIZE)
    assert np.array_equal(model.maps(found.paths).half().numpy(), found.features)
    pooled = embedded_into(photos, tmp_path / "e.npy", console)
    assert pooled.features.shape == (25, 1280), "cached apart"
    np.testing.assert_allclose(found.features.astype(np.float32).mean((1, 2)), pooled.features, rtol=0.01, atol=0.01)
    assert "25 images, 2 x 2 x 1280 features each" in console.file.getvalue()


def test_feature_maps_are_written_in_blocks(photos, tmp_path, console, monkeypatch):
    monkeypatch.setattr("glf.inference.writers.BLOCK_BYTES", 3 * 2 * 2 * 1280 * 2)
    found = embedded_into(photos, tmp_path / "maps.parquet", console, features="map")
    table = pq.ParquetFile(tmp_path / "maps.parquet")
    assert table.num_row_groups == 9
    assert table.read()["path"].to_pylist() == found.paths


def test_feature_maps_that_cannot_be_written(photos, tmp_path, console):
    with pytest.raises(ValueError, match=r"too many numbers for e\.csv: choose \.npy or \.parquet"):
        embedded_into(photos, tmp_path / "e.csv", console, features="map")
    with pytest.raises(ValueError, match="--map projects one vector of each image: leave it out"):
        embedded_into(photos, tmp_path / "e.npy", console, features="map", map=True)
    with pytest.raises(ValueError, match="pixels has no feature map"):
        embed(EmbedConfig(run="pixels", data=str(photos), out=tmp_path / "e.npy", features="map"), console)
    assert not list(tmp_path.iterdir())
