"""What --data may refer to, and shards.json."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from glf.config.inference import ShardConfig
from glf.data.decode import StoredSize
from glf.data.shards.index import is_stream, open_stream
from glf.data.shards.read import read_samples
from glf.data.shards.schema import parse_index
from glf.data.sources import load_images
from glf.sharding import shard


def test_a_pattern_and_a_list_open_the_shards_they_name(folder: Path, tmp_path: Path) -> None:
    pattern = open_stream(f"{folder}/shard-{{000002..000004}}.tar")
    assert [Path(url).name for url in pattern.urls] == [f"shard-00000{i}.tar" for i in (2, 3, 4)]
    (tmp_path / "list.txt").write_text(f"# two\n{folder}/shard-{{000002,000003}}.tar\n\n{folder}/shard-000004.tar\n")
    named = open_stream(str(tmp_path / "list.txt"))
    assert (named.urls, named.key, named.size) == (pattern.urls, pattern.key, pattern.size)
    assert all(is_stream(data) for data in (str(folder), str(tmp_path / "list.txt"), "s3://bucket/x.tar"))
    assert not any(is_stream(data) for data in ("cifar10", str(tmp_path), str(folder / "shard-000000.tar"), ""))


def test_without_an_index_the_first_samples_are_inspected(folder: Path) -> None:
    indexed, inspected = open_stream(str(folder)), open_stream(f"{folder}/shard-{{000000..000007}}.tar")
    assert inspected.size == indexed.size == StoredSize(28, 1, False)
    assert (inspected.count, inspected.prior_width, inspected.classes) == (None, 6, ())
    assert np.allclose(inspected.mean, indexed.mean, atol=0.1)
    labels = inspected.images(inspected.urls[0], 9).targets
    assert len(labels) == 9
    assert (labels >= 0).all()
    assert (open_stream(str(folder), labels="none").images(indexed.urls[0], 9).targets == -1).all()


def test_mistakes_are_explained(folder: Path, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"2 of the 10 shards of .* do not exist, the first is .*shard-000008.tar"):
        open_stream(f"{folder}/shard-{{000000..000009}}.tar")
    (copied / "shard-000003.tar").unlink()
    with pytest.raises(ValueError, match=r"1 of the 8 shards of .* the first is .*shard-000003.tar"):
        open_stream(str(copied))
    for command in ("pipe:touch /tmp/owned", "PIPE:touch /tmp/owned; echo ://", "\x01pipe:touch /tmp/owned; echo ://"):
        (tmp_path / "list.txt").write_text(f"{command}\n")
        with pytest.raises(ValueError, match="commands are only accepted in --data itself"):
            open_stream(str(tmp_path / "list.txt"))
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(ValueError, match="lists no shards"):
        open_stream(str(tmp_path / "list.txt"))
    with pytest.raises(ValueError, match="is a stream of shards, which `glf pretrain` and `glf embed --part` read"):
        load_images(str(folder))


def test_a_missing_webdataset_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises(ValueError, match=r"pip install 'glf\[shards\]'"):
        open_stream(f"{folder}/shard-{{000000..000007}}.tar")
    with pytest.raises(ValueError, match=r"pip install 'glf\[shards\]'"):
        next(read_samples(str(folder / "shard-000000.tar"), 0))


def test_the_index_describes_the_shards(few_images: str, tmp_path: Path, console: Console) -> None:
    settings = ShardConfig(data=few_images, out=tmp_path / "out", per_shard=64, prior="pixels", prior_width=8)
    index = shard(settings, console)
    text = (tmp_path / "out" / "shards.json").read_text()
    assert parse_index(text, "here") == index
    content = json.loads(text)
    wanted = {"schema": 1, "images": 160, "per_shard": 64, "shards": 3, "channels": 1, "side": 28, "labelled": True}
    assert content | wanted == content
    assert (len(content["mean"]), len(content["std"]), len(content["classes"])) == (1, 1, 10)
    assert (content["prior"]["name"], content["prior"]["width"]) == ("pixels", 8)
    assert index.in_last == 160 - 2 * 64
    assert not (tmp_path / "out" / "plan.json").exists()


def test_other_schemas_and_other_files_are_refused() -> None:
    with pytest.raises(ValueError, match="here has schema 2; this version of glf reads 1"):
        parse_index('{"schema": 2}', "here")
    for text in ("[]", "{", "{}", '{"schema": 1, "images": 3}'):
        with pytest.raises(ValueError, match=r"here is not a shards\.json written by glf shard"):
            parse_index(text, "here")


def change(content: dict[str, Any], key: str, value: Any) -> None:
    *outer, last = key.split(".")
    for name in outer:
        content = content[name]
    content[last] = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("images", "96", "images is '96', expected a whole number from 1 to"),
        ("images", 96.0, "images is 96.0, expected a whole number"),
        ("images", True, "images is True, expected a whole number"),
        ("images", 5 * 10**9, "shards is 8, and the rest says 416666667"),
        ("images", 10**30, "images is 10+, expected"),
        ("per_shard", 0, "per_shard is 0, expected"),
        ("shards", 10**9, "shards is 1000000000, expected"),
        ("shards", [8], r"shards is \[8\], expected"),
        ("channels", 4, "channels is 4, expected 1 or 3"),
        ("side", -28, "side is -28, expected null or a whole number"),
        ("mean", "0.5", "mean is '0.5', expected a list of numbers"),
        ("mean", [0.5, 0.5, 0.5], "mean is 3 channels, and the rest says 1 channels"),
        ("std", [0.0], r"std is \[0.0\], expected"),
        ("std", [float("nan")], r"std is \[nan\], expected"),
        ("classes", 10, "classes is 10, expected a list of"),
        ("classes", [], "labelled is True, and the rest says False"),
        ("labelled", "yes", "labelled is 'yes', expected true or false"),
        ("prior", "pixels", "prior is 'pixels', expected null or an object"),
        ("prior.width", "6", "prior.width is '6', expected"),
        ("prior.command", "rm", "unknown key 'prior.command'"),
        ("image", 96, "unknown key 'image' - did you mean 'images'"),
        ("seed", None, "seed is None, expected"),
    ],
)
def test_an_index_is_checked_key_by_key(copied: Path, key: str, value: Any, message: str) -> None:
    path = copied / "shards.json"
    content = json.loads(path.read_text())
    change(content, key, value)
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=rf"shards\.json is not a shards\.json written by glf shard: .*{message}"
    ) as error:
        open_stream(str(copied))
    assert "\n" not in str(error.value)


def test_an_index_of_more_images_than_its_shards_can_hold_is_refused(copied: Path) -> None:
    path = copied / "shards.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"images": 8 * 10**8, "per_shard": 10**8}))
    with pytest.raises(
        ValueError, match=r"shards\.json says that there are 800,000,000 images, but its shards have only"
    ):
        open_stream(str(copied))


@pytest.mark.parametrize(
    "pattern",
    [
        "x-{0..9999999999}.tar",
        "{0..9999}{0..9999}{0..9999}",
        "{a,b}" * 40,
        "{a,b{0..9999999}}",
        "{" * 5000 + "}" * 5000,
    ],
)
def test_a_pattern_of_too_many_names_is_refused_before_it_is_expanded(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webdataset.shardlists.expand_urls", lambda urls: pytest.fail("expanded"))
    (tmp_path / "list.txt").write_text(f"http://host/{pattern}\n")
    for data in (f"http://host/{pattern}", str(tmp_path / "list.txt")):
        with pytest.raises(
            ValueError, match=r"the pattern .* cannot be used: (it stands for more than|maximum recursion)"
        ):
            open_stream(data)


def test_the_digest_changes_with_any_field(few_images: str, tmp_path: Path, console: Console) -> None:
    index = shard(ShardConfig(data=few_images, out=tmp_path / "out"), console)
    assert index.digest == parse_index(index.text(), "here").digest
    assert replace(index, seed=1).digest != index.digest
