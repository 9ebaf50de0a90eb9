"""The images and labels of tables, by the commands' own way in: find_source and load_images."""

import pickle
from io import StringIO
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from glf.config.inference import ShardConfig
from glf.data.shards.index import open_stream
from glf.data.source import MissingSplit
from glf.data.sources import find_source, load_images
from glf.sharding import shard

from .conftest import NAMES, Write


def test_parquet_gives_the_images_and_labels_of_the_files(parquet: Write, fashion: NDArray[np.uint8]) -> None:
    images = load_images(str(parquet()))
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[:12])
    assert images.targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert images.classes == ("0", "1", "2")
    source = find_source(str(parquet()), "train")
    assert source.path(7).endswith("data.parquet/7.png")
    assert pickle.loads(pickle.dumps(source)).read(7) == source.read(7)


@pytest.mark.parametrize("kind", ["binary", "large_binary", "struct"])
def test_every_type_of_column(parquet: Write, files: list[bytes], fashion: NDArray[np.uint8], kind: str) -> None:
    if kind == "struct":
        values: Any = [{"bytes": data, "path": f"{i}.PNG"} for i, data in enumerate(files)]
    else:
        values = pa.array(files, getattr(pa, kind)())
    path = parquet(columns={"id": list(range(12)), "picture": values})
    np.testing.assert_array_equal(load_images(str(path)).pixels[..., 0], fashion[:12])


def test_save_to_disk_gives_the_same(saved: datasets.Dataset, tmp_path: Path, fashion: NDArray[np.uint8]) -> None:
    saved.save_to_disk(tmp_path / "saved", num_shards=3)
    images = load_images(str(tmp_path / "saved"))
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[:12])
    assert images.classes == tuple(NAMES)
    assert images.targets.tolist() == saved["kind"][:]


def test_a_selection_that_was_saved_keeps_its_order(
    saved: datasets.Dataset, tmp_path: Path, fashion: NDArray[np.uint8]
) -> None:
    saved.select([7, 2, 9]).save_to_disk(tmp_path / "some")
    images = load_images(str(tmp_path / "some"))
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[[7, 2, 9]])
    assert images.targets.tolist() == [1, 0, 2]


def test_splits_of_a_saved_data_set(saved: datasets.Dataset, tmp_path: Path) -> None:
    parts = {"train": saved, "validation": saved.select([1, 11]), "extra": saved.select([5])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "splits")
    data = str(tmp_path / "splits")
    assert len(load_images(data)) == 12
    test = load_images(data, "test")
    assert test.targets.tolist() == [0, 2]
    assert test.classes == tuple(NAMES)
    everything = find_source(data, "all")
    assert len(everything) == 15
    assert everything.path(14) == f"{data}/extra/0.png"
    assert load_images(f"{data}/extra").targets.tolist() == [1]


def test_missing_splits_are_named(saved: datasets.Dataset, tmp_path: Path) -> None:
    datasets.DatasetDict({"a": saved, "b": saved}).save_to_disk(tmp_path / "ab")
    with pytest.raises(ValueError, match="no split 'train', it has a, b: name one of them"):
        find_source(str(tmp_path / "ab"), "train")
    datasets.DatasetDict({"a": saved}).save_to_disk(tmp_path / "a")
    assert len(find_source(str(tmp_path / "a"), "train")) == 12
    with pytest.raises(MissingSplit, match="no split 'test', its only one is read as 'train'"):
        find_source(str(tmp_path / "a"), "test")


def test_a_test_split_with_hidden_labels_gives_way_to_one_with_labels(saved: datasets.Dataset, tmp_path: Path) -> None:
    hidden = datasets.Dataset.from_dict(saved.select([0, 1]).to_dict() | {"kind": [-1, -1]}, features=saved.features)
    parts = {"train": saved, "test": hidden, "validation": saved.select([4])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "hidden")
    assert load_images(str(tmp_path / "hidden"), "test").targets.tolist() == [1]


def test_rows_without_an_image_and_broken_ones_are_skipped_and_listed(parquet: Write, files: list[bytes]) -> None:
    values: list[bytes | None] = list(files)
    values[2], values[5], values[8] = None, b"no image", b""
    images = load_images(str(parquet(columns={"image": values, "label": [i // 4 for i in range(12)]})))
    assert [one.name for one in images.skipped] == ["2", "5", "8"]
    assert images.skipped[0].why == "no image in this row"
    assert images.targets.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    with pytest.raises(
        ValueError, match=r"no images in column 'image' .* \(3 skipped, first 0: no image in this row\)"
    ):
        load_images(str(parquet(columns={"image": pa.array([None] * 3, pa.binary())})))


def test_a_column_of_other_bytes_ends_with_the_first_ones(parquet: Write) -> None:
    with pytest.raises(ValueError, match="more than half of the 4 image files"):
        load_images(str(parquet(columns={"sound": [b"RIFF1234WAVE"] * 4})))


def test_rows_that_name_files(parquet: Write, classes: Path, fashion: NDArray[np.uint8]) -> None:
    names = ["photos/boot/1.png", str(classes / "coat" / "2.png"), "photos/gone.png", "a\0b", None]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    path = parquet(columns={"image": pa.array([{"bytes": None, "path": name} for name in names], kind)})
    images = load_images(str(path))
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[[1, 6]])
    assert find_source(str(path), "train").path(0) == str(classes / "boot" / "1.png")
    assert [one.name for one in images.skipped] == ["2", "3", "4"]
    path = parquet("names.parquet", {"file": names[:2]})
    np.testing.assert_array_equal(load_images(f"{path}?image=file").pixels[..., 0], fashion[[1, 6]])


def test_images_are_decoded_like_files(parquet: Write, tmp_path: Path, colour: NDArray[np.uint8]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    folder = tmp_path / "rotated"
    folder.mkdir()
    for i in range(3):
        Image.fromarray(colour[i]).resize((300, 200)).save(folder / f"{i}.jpg", exif=exif)
    path = parquet(columns={"image": [(folder / f"{i}.jpg").read_bytes() for i in range(3)]})
    for store in ("pack", "decode"):
        expected, found = (load_images(str(data), size=64, store=store) for data in (folder, path))
        np.testing.assert_array_equal(found.pixels[:], expected.pixels[:])


def test_the_key_follows_the_images_and_not_the_cache(
    parquet: Write, files: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = parquet()
    key = find_source(str(path), "train").key
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "another"))
    assert find_source(str(path), "train").key == key
    assert find_source(f"{path}?label=none", "train").key == key
    parquet(columns={"image": [*files[:11], files[0]], "label": [0] * 12})
    assert find_source(str(path), "train").key != key


def test_shards_of_a_table(parquet: Write, tmp_path: Path, files: list[bytes]) -> None:
    shard(ShardConfig(data=str(parquet()), out=tmp_path / "shards", per_shard=5), Console(file=StringIO()))
    stream = open_stream(str(tmp_path / "shards"))
    assert (stream.count, stream.classes) == (12, ("0", "1", "2"))
    images = [sample for url in stream.urls for sample in stream.images(url, 12).pixels[..., 0]]
    expected = [pixels.tobytes() for pixels in load_images(str(parquet())).pixels[..., 0]]
    assert sorted(image.tobytes() for image in images) == sorted(expected)
