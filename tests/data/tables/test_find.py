"""Which files a table consists of, and how a user writes its columns."""

import json
import os
from pathlib import Path

import datasets
import pytest

from glf.data.sources import find_source, load_images
from glf.data.tables.find import find_table
from glf.data.tables.options import Address, parse_address

from .conftest import Write


def test_options_follow_a_question_mark(tmp_path: Path) -> None:
    assert parse_address("a.parquet?image=x&label=y") == Address("a.parquet", {"image": "x", "label": "y"})
    assert parse_address("hf:u/n?config=c").options == {"config": "c"}
    odd = tmp_path / "what?.parquet"
    odd.touch()
    assert parse_address(str(odd)) == Address(str(odd), {})
    with pytest.raises(ValueError, match="unknown option 'lable' - did you mean 'label'"):
        parse_address("a.parquet?lable=x")
    with pytest.raises(ValueError, match="'x' cannot be read as options"):
        parse_address("hf:u/n?x")


def test_options_for_what_has_no_columns_are_refused(classes: Path) -> None:
    with pytest.raises(ValueError, match="no table with columns"):
        find_source(f"{classes}?image=x", "train")


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(OSError, match="not a regular file"):
        find_source(str(tmp_path / "pipe.parquet"), "train")


def test_the_names_of_parquet_files_give_their_splits(parquet: Write, tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-0", "test-0"):
        parquet(f"set/data/{name}.parquet")
    table = find_table(tmp_path / "set")
    assert table is not None
    assert {split: len(files) for split, files in table.splits.items()} == {"train": 2, "validation": 1, "test": 1}
    parquet("set/readme-interval.parquet")
    with pytest.raises(ValueError, match=r"readme-interval.parquet is in no split, and other tables in .* are in"):
        find_table(tmp_path / "set")


def test_images_win_over_a_table_next_to_them(classes: Path, parquet: Write) -> None:
    parquet("photos/embeddings.parquet")
    assert find_table(classes) is None
    assert len(find_source(str(classes), "train")) == 12


def test_a_folder_of_parquet_files_without_splits_is_one_training_split(parquet: Write, tmp_path: Path) -> None:
    parquet("set/a.parquet")
    parquet("set/b.parquet")
    parquet("set/.hidden/c.parquet")
    images = load_images(str(tmp_path / "set"))
    assert len(images) == 24
    assert images.labelled


@pytest.fixture
def folder(saved: datasets.Dataset, tmp_path: Path) -> Path:
    saved.save_to_disk(tmp_path / "saved", num_shards=2)
    return tmp_path / "saved"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_data_files": [{"filename": "../../x.arrow"}]}, "names no files of its folder"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, "names no files of its folder"),
        ({"_data_files": []}, "names no files of its folder"),
        ({"_data_files": [3]}, "names no files of its folder"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, "gone.arrow is missing, one of the 1 files"),
        ({"_indices_data_files": [{"filename": "i.arrow"}]}, "names no files of its folder"),
    ],
)
def test_a_note_that_names_other_files(folder: Path, change: dict[str, object], message: str) -> None:
    note = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(note | change))
    with pytest.raises(ValueError, match=message):
        find_source(str(folder), "train")


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000])
def test_a_note_that_is_none(folder: Path, content: str) -> None:
    (folder / "state.json").write_text(content)
    with pytest.raises(ValueError, match=r"state\.json cannot be read"):
        find_source(str(folder), "train")


def test_a_data_set_directory_that_is_not_one(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "saved"]}')
    with pytest.raises(ValueError, match=r"train is no saved data set, because it has no state\.json"):
        find_source(str(tmp_path), "train")
    (tmp_path / "dataset_dict.json").write_text('{"splits": [".."]}')
    with pytest.raises(ValueError, match="names no splits"):
        find_source(str(tmp_path), "train")
