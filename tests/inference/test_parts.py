"""glf embed --part: all parts together are the whole table, whatever the data, and whatever happens to a process."""

import json
import os
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

import forked
import glf
from glf.config.inference import EmbedConfig, ShardConfig
from glf.data import files
from glf.data.sources import load_images
from glf.inference.embedding import embed
from glf.nn.backbone import Backbone
from glf.nn.weights import save_backbone
from glf.sharding import shard
from photos import write_photos

BATCH = 4
Embed = Callable[..., Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone and 24 photos with 3 broken files among them: as a folder, a tar, shards and an array."""
    place = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    save_backbone(Backbone("small_resnet", image_size=32), place / "b.safetensors")
    torch.manual_seed(1)
    save_backbone(Backbone("small_resnet", image_size=32), place / "other.safetensors")
    write_photos(place / "folder")
    with tarfile.open(place / "photos.tar", "w") as tar:
        tar.add(place / "folder", "folder")
    shard(ShardConfig(data=str(place / "folder"), out=place / "shards", per_shard=7), Console(quiet=True))
    np.save(place / "array.npy", load_images("fashion-mini", "test").pixels[:30])
    return place


@pytest.fixture
def embedded(place: Path, tmp_path: Path) -> Embed:
    def run(data: str, part: str | None = None, out: str | Path = "parts", **settings: Any) -> Path:
        out = out if "://" in str(out) else tmp_path / out
        options = {"run": str(place / "b.safetensors"), "batch_size": BATCH, "device": "cpu", **settings}
        done = embed(EmbedConfig(data=str(place / data), out=out, part=part, **options), Console(quiet=True))
        return Path(str(done)) if part else Path(out)

    return run


def rows(table: pa.Table) -> tuple[list[str], bytes]:
    return table["path"].to_pylist(), np.array(table["embedding"].combine_chunks().flatten()).tobytes()


# --- all parts are the whole


@pytest.mark.parametrize(
    ("data", "count"), [("folder", 1), ("folder", 3), ("folder", 28), ("photos.tar", 9), ("array.npy", 3)]
)
def test_all_parts_together_are_the_table_of_one_process(
    embedded: Embed, tmp_path: Path, data: str, count: int
) -> None:
    for number in range(count, 0, -1):  # in any order
        embedded(data, f"{number}/{count}")
    table = glf.read_parts(tmp_path / "parts").to_table()
    whole = pq.read_table(embedded(data, out="whole.parquet"))
    assert table.schema.equals(whole.schema)
    assert table.num_rows == (30 if data == "array.npy" else 24)
    assert rows(table) == rows(whole), "in order, to the last bit"


@pytest.mark.parametrize("count", [2, 4, 9])
def test_parts_of_shards(embedded: Embed, place: Path, tmp_path: Path, count: int) -> None:
    for number in range(1, count + 1):
        embedded("shards", f"{number}/{count}")
    table = glf.read_parts(tmp_path / "parts").to_table()
    embedded("shards", "1/1", out="whole")
    assert rows(table) == rows(glf.read_parts(tmp_path / "whole").to_table())
    images = load_images(str(place / "folder"), store="decode")
    keys = [int(path.rpartition("/")[2]) for path in table["path"].to_pylist()]
    assert table["path"][0].as_py().startswith("shard-000000.tar/")
    assert sorted(keys) == list(range(24))
    assert table["label"].to_pylist() == images.targets[keys].tolist()
    whole = pq.read_table(embedded("folder", out="whole.parquet"))
    features = [np.array(found["embedding"].to_pylist()) for found in (table, whole)]
    np.testing.assert_allclose(features[0], features[1][keys], rtol=1e-4, atol=1e-5)


def test_a_part_without_images_is_a_table_without_rows(embedded: Embed) -> None:
    empty = pq.read_table(embedded("folder", "1/28"))
    some = pq.read_table(embedded("folder", "28/28"))
    assert (empty.num_rows, some.num_rows) == (0, 1)  # the last batch has one image and two broken files
    assert empty.schema.equals(some.schema)


def test_a_part_reads_only_its_own_images(embedded: Embed, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()
    monkeypatch.setattr(files.Files, "listing", "0" * 16)  # which reads 16 files of all
    read = files.Files.read
    monkeypatch.setattr(files.Files, "read", lambda self, i: opened.append(self.name(i)) or read(self, i))
    path = embedded("folder", "2/3")
    note = json.loads(pq.read_metadata(path).metadata[b"glf"])
    names = pq.read_table(path)["path"].to_pylist() + [name for name, _ in note["skipped"]]
    assert sorted(opened) == sorted(str(Path(name).relative_to(place / "folder")) for name in names)
    assert 0 < len(opened) < 15


def test_a_part_of_shards_opens_no_others(embedded: Embed, monkeypatch: pytest.MonkeyPatch) -> None:
    from glf.data.shards import read

    opened, open_url = list[str](), read.open_url
    monkeypatch.setattr(read, "open_url", lambda url: opened.append(Path(url).name) or open_url(url))
    embedded("shards", "2/4")
    assert opened == ["shard-000001.tar"]


def test_broken_files_are_in_the_note(embedded: Embed, place: Path) -> None:
    note = json.loads(pq.read_metadata(embedded("folder", "1/1")).metadata[b"glf"])
    assert [Path(name).relative_to(place / "folder").as_posix() for name, _ in note["skipped"]] == [
        "boot/cut.jpg",
        "coat/empty.png",
        "coat/text.jpg",
    ]
    assert note["skipped"][1][1] == "empty file"
    assert (note["part"], note["parts"], note["rows"]) == (1, 1, 24)


def test_a_network_that_is_gone_is_no_finished_part(
    embedded: Embed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: files.Files, i: int) -> bytes:
        raise OSError("the network is gone")

    monkeypatch.setattr(files.Files, "listing", "0" * 16)
    monkeypatch.setattr(files.Files, "read", failing)
    with pytest.raises(OSError, match=r"8 of the 8 images of part 1/3 cannot be read, first .*the network is gone"):
        embedded("folder", "1/3")
    assert not list((tmp_path / "parts").iterdir())


# --- what is there already


def test_a_finished_part_is_kept(embedded: Embed, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = embedded("folder", "2/3")
    before = path.stat().st_mtime_ns
    monkeypatch.setattr("glf.inference.parts.encoding", None)  # nothing is encoded
    assert embedded("folder", "2/3") == path
    assert path.stat().st_mtime_ns == before
    for file in (place / "folder").rglob("*.jpg"):
        os.utime(file)  # as in a copy on another machine
    embedded("folder", "2/3")


@pytest.mark.parametrize(
    ("settings", "differing"),
    [({"run": "other.safetensors"}, "encoder"), ({"batch_size": 8}, "batch_size"), ({"data": "array.npy"}, "listing")],
)
def test_a_part_of_something_else_is_not_replaced(
    embedded: Embed, place: Path, settings: dict[str, Any], differing: str
) -> None:
    path = embedded("folder", "2/3")
    before = path.read_bytes()
    if "run" in settings:
        settings = {"run": str(place / settings["run"])}
    with pytest.raises(ValueError, match=rf"part-2-of-3.parquet was made with other settings \({differing} differ\)"):
        embedded(**{"data": "folder", "part": "2/3", **settings})
    with pytest.raises(ValueError, match=r"has one of 3 parts \(part-2-of-3.parquet\): choose another --out"):
        embedded("folder", "2/4")
    assert path.read_bytes() == before


@pytest.mark.parametrize("spoil", ["cut", "text", "empty", "foreign", "fewer rows"])
def test_what_is_no_whole_part_is_neither_kept_nor_replaced(embedded: Embed, tmp_path: Path, spoil: str) -> None:
    path = embedded("folder", "2/3")
    embedded("folder", "1/3")
    embedded("folder", "3/3")
    content = path.read_bytes()
    if spoil == "foreign":
        pq.write_table(pa.table({"a": [1]}), path)
    elif spoil == "fewer rows":
        table = pq.read_table(path)
        pq.write_table(table.slice(1), path)  # keeps the note
    else:
        path.write_bytes({"cut": content[:-20], "text": b"the only copy of something", "empty": b""}[spoil])
    before = path.read_bytes()
    for attempt in (lambda: embedded("folder", "2/3"), lambda: glf.read_parts(tmp_path / "parts")):
        with pytest.raises(ValueError, match=r"part-2-of-3.parquet is not a whole part \(.+\): move it away") as error:
            attempt()
        assert "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_parts_that_are_missing_or_do_not_belong_together(embedded: Embed, place: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no parts in .*: glf embed RUN DATA --part 1/10"):
        glf.read_parts(tmp_path)
    embedded("folder", "1/4")
    embedded("folder", "3/4")
    with pytest.raises(ValueError, match=r"2 of 4 parts are missing in .*: 2, 4"):
        glf.read_parts(tmp_path / "parts")
    embedded("folder", "2/4", run=str(place / "other.safetensors"))
    with pytest.raises(ValueError, match=r"part-2-of-4.* and part-1-of-4.* are of different tables \(encoder differ"):
        glf.read_parts(tmp_path / "parts")


# --- a kill


KILLED = """
import os, signal, sys
from pathlib import Path
from rich.console import Console
from glf import files
from glf.config.inference import EmbedConfig
from glf.inference import part_files, parts
from glf.inference.embedding import embed
run, data, out, when = sys.argv[1:]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
if when.isdigit():
    batches = parts.DividedSource.batches
    def some(self, *given):
        for number, batch in enumerate(batches(self, *given)):
            if number == int(when):
                die()
            yield batch
    parts.DividedSource.batches = some
    part_files.ROWS = 4  # so that rows are on their way to the disk
elif when == "footer":
    note = part_files.json.dumps
    part_files.json.dumps = lambda content: die()
else:
    replace = os.replace
    def killing(*names):
        if when == "after":
            replace(*names)
        die()
    files.os.replace = killing
embed(EmbedConfig(run=run, data=data, out=out, part="1/2", batch_size=4, device="cpu"), Console(quiet=True))
"""


@pytest.mark.parametrize("when", ["0", "2", "footer", "before", "after"])
def test_kill_9_leaves_no_part_or_a_whole_one(embedded: Embed, place: Path, tmp_path: Path, when: str) -> None:
    arguments = [place / "b.safetensors", place / "folder", tmp_path / "parts", when]
    done = forked.run([sys.executable, "-c", KILLED, *map(str, arguments)], timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    visible = [path.name for path in (tmp_path / "parts").iterdir() if path.name[0] != "."]
    assert visible == (["part-1-of-2.parquet"] if when == "after" else [])
    embedded("folder", "1/2")
    embedded("folder", "2/2")
    assert len(list((tmp_path / "parts").iterdir())) == 2, "no temporary file is left"
    whole = pq.read_table(embedded("folder", out="whole.parquet"))
    assert rows(glf.read_parts(tmp_path / "parts").to_table()) == rows(whole)


# --- URLs


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_url(embedded: Embed, tmp_path: Path, scheme: str) -> None:
    url = f"memory://bucket{tmp_path}" if scheme == "memory" else f"file://{tmp_path}/deep/parts"
    for number in (1, 2, 3):
        embedded("folder", f"{number}/3", out=url)
    embedded("folder", "2/3", out=url)
    whole = pq.read_table(embedded("folder", out="whole.parquet"))
    assert rows(glf.read_parts(url).to_table()) == rows(whole)
    if scheme == "file":
        assert len(list((tmp_path / "deep" / "parts").iterdir())) == 3


# --- mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"part": "0/10"}, "like 17/1000, got '0/10'"),
        ({"part": "11/10"}, "like 17/1000, got '11/10'"),
        ({"part": "1/0"}, "got '1/0'"),
        ({"part": "-1/3"}, "got '-1/3'"),
        ({"part": "a/b"}, "got 'a/b'"),
        ({"part": "1"}, "got '1'"),
        ({"part": "1/3/3"}, "got '1/3/3'"),
        ({"part": "\u0661/\u0663"}, "got "),  # digits, but not ASCII
        ({"part": "1/9999999"}, "at most 1,000,000"),
        ({"part": "1/2", "out": Path("e.npy")}, "give a folder with --out, not e.npy"),
        ({"part": "1/2", "out": "s3://bucket/e.parquet"}, "give a folder with --out"),
        ({"out": "s3://bucket/e"}, "is a URL, which takes parts only: add --part 1/1"),
        ({"part": "1/2", "out": "parts", "map": True}, "--map needs the features of all images"),
    ],
)
def test_bad_options(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        EmbedConfig(run="pixels", data="photos", **settings)
    assert "\n" not in str(error.value)


def test_a_file_where_the_folder_should_be(embedded: Embed, tmp_path: Path) -> None:
    (tmp_path / "parts").write_text("the only copy of something")
    with pytest.raises(ValueError, match="parts is not a folder"):
        embedded("folder", "1/2")


def test_without_pyarrow(embedded: Embed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glf.inference.parts.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'glf\[parquet\]'"):
        embedded("folder", "1/2")
