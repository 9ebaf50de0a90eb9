"""Samples of one shard: decoded like the files of a folder; damaged and remote shards."""

import functools
import io
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from glf.config.inference import ShardConfig
from glf.data.shards import fetch
from glf.data.shards.index import open_stream
from glf.data.shards.read import BrokenShard, ShardSample, read_samples
from glf.data.sources import load_images
from glf.sharding import shard
from photos import write_photos
from shard_streams import BATCH, COUNT, PER_SHARD, assert_same, batches, epoch, npy, rewrite


@pytest.mark.parametrize("size", [None, 28, 64])
def test_pixels_equal_those_of_the_image_cache(size: int | None, tmp_path: Path, console: Console) -> None:
    photos = write_photos(tmp_path / "camera", 12)
    shard(ShardConfig(data=str(photos), out=tmp_path / "out", per_shard=5), console)
    cached = load_images(str(photos), size=size, store="pack")
    stream = open_stream(str(tmp_path / "out"), size=size)
    seen = set()
    for number, url in enumerate(stream.urls):
        for sample in read_samples(url, number):
            assert isinstance(sample, ShardSample)
            row = int(sample.name.rpartition("/")[2])
            found = stream.decode(sample, prior=False)
            assert np.array_equal(found.pixels, cached.pixels[row])
            assert found.target == cached.targets[row]
            seen.add(row)
    assert seen == set(range(12))


@pytest.mark.parametrize(("side", "size"), [(40, 28), (40, 40), (128, 128), (128, None), (300, 128)])
def test_pixels_of_square_images_equal_those_of_the_image_cache(
    side: int, size: int | None, tmp_path: Path, console: Console
) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(3):
        noise = np.random.default_rng(i).integers(0, 255, (side, side, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / "photos" / f"{i}.jpg")
    shard(ShardConfig(data=str(tmp_path / "photos"), out=tmp_path / "out"), console)
    cached = load_images(str(tmp_path / "photos"), size=size, store="pack")
    stream = open_stream(str(tmp_path / "out"), size=size)
    assert cached.size == (stream.size.side,) * 2
    for sample in read_samples(stream.urls[0], 0):
        assert isinstance(sample, ShardSample)
        assert np.array_equal(stream.pixels(sample.image), cached.pixels[int(sample.name.rpartition("/")[2])])


def test_invalid_labels_and_prior_features_raise(folder: Path) -> None:
    stream = open_stream(str(folder))
    sample = next(read_samples(stream.urls[0], 0))
    assert isinstance(sample, ShardSample)
    good = stream.decode(sample, prior=True)
    assert good.target == int(sample.label or b"")
    assert good.prior is not None
    assert good.prior.shape == (6,)
    for part, value in (("label", b"cat"), ("prior", None), ("prior", b""), ("prior", npy([np.nan] * 6))):
        with pytest.raises((ValueError, EOFError)):
            stream.decode(sample._replace(**{part: value}), prior=True)
    with pytest.raises(ValueError, match="not a vector of 6"):
        stream.decode(sample._replace(prior=npy([1.0] * 5)), prior=True)


def test_a_label_outside_of_the_classes_raises(folder: Path, copied: Path, tmp_path: Path) -> None:
    """A huge label must not allocate memory for that many classes."""
    stream = open_stream(str(folder))
    sample = next(read_samples(stream.urls[0], 0))
    assert isinstance(sample, ShardSample)
    assert stream.decode(sample._replace(label=b"-1"), prior=False).target == -1
    for label in (b"10", b"-2", b"1" + b"0" * 30):
        with pytest.raises(ValueError, match="label outside of the 10 classes"):
            stream.decode(sample._replace(label=label), prior=False)
    rewrite(copied / "shard-000000.tar", {2: b"9" * 12, 3: b"9" * 30}, ".cls")
    unknown = open_stream(str(copied / "shard-{000000..000007}.tar"))
    skipped = unknown.images(unknown.urls[0], COUNT).skipped
    assert [one.why for one in skipped] == ["label outside of the 1,000,000 classes"] * 2
    listed = tmp_path / "skipped.txt"
    assert len(epoch(batches(unknown, 1, skipped=listed))) == COUNT // BATCH
    assert listed.read_text().count("label outside of") == 2


def test_a_colour_image_in_a_grey_data_set_raises(folder: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (28, 28)).save(file, "PNG")
    with pytest.raises(ValueError, match="colour image in a grey"):
        open_stream(str(folder)).pixels(file.getvalue())


def test_a_truncated_shard_raises_wherever_it_ends(folder: Path, tmp_path: Path) -> None:
    path = folder / "shard-000001.tar"
    with tarfile.open(path) as tar:
        members = list(tar)
    whole, end = path.read_bytes(), members[-1].offset_data + 512 * -(-members[-1].size // 512)
    assert len(list(read_samples(str(path), 0))) == PER_SHARD
    cuts = [0, 100, 512, 600, end - 1, end, end + 99]
    cuts += [members[5].offset, members[5].offset + 100, members[5].offset_data]
    for cut in cuts:
        (tmp_path / "cut.tar").write_bytes(whole[:cut])
        with pytest.raises(BrokenShard, match=r"cannot read the shard .*cut\.tar"):
            list(read_samples(str(tmp_path / "cut.tar"), 0))
    (tmp_path / "cut.tar").write_bytes(whole[: end + 512])  # a single block of zeros is a valid end
    assert len(list(read_samples(str(tmp_path / "cut.tar"), 0))) == PER_SHARD
    damaged = bytearray(whole)
    damaged[members[7].offset + 3] ^= 1
    (tmp_path / "cut.tar").write_bytes(damaged)
    with pytest.raises(BrokenShard, match="bad checksum"):
        list(read_samples(str(tmp_path / "cut.tar"), 0))


def test_the_held_out_shard_is_not_counted(folder: Path, copied: Path) -> None:
    rest, last = open_stream(str(folder)).held_out()
    assert (len(rest.urls), rest.count) == (7, COUNT - PER_SHARD)
    assert last.endswith("shard-000007.tar")
    rewrite(Path(str(copied / "shard-000007.tar")), {2: b"no image"})
    images = rest.images(str(copied / "shard-000007.tar"), 100)
    assert len(images) == PER_SHARD - 1
    assert images.labelled
    assert images.skipped[0].name.startswith("shard-000007.tar/")


# --- remote shards


class Server(SimpleHTTPRequestHandler):
    """Serves files; closes the connection in the middle of the first ``breaks`` responses for a name."""

    requests: ClassVar[Counter[str]] = Counter()
    breaks: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.requests[name] += 1
        if not self.breaks[name]:
            return super().do_GET()
        self.breaks[name] -= 1
        data = (Path(self.directory) / name).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) * 2 // 3])
        return None

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of the shards on a local server."""
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
    monkeypatch.setattr(Server, "requests", Counter())
    monkeypatch.setattr(Server, "breaks", Counter())
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_url_gives_the_batches_of_the_folder(served: str, folder: Path) -> None:
    local, remote = open_stream(str(folder)), open_stream(f"{served}/shards.json")
    assert (remote.count, remote.size, remote.key, remote.classes) == (
        local.count,
        local.size,
        local.key,
        local.classes,
    )
    assert_same(epoch(batches(remote, 2)), epoch(batches(local, 2)))
    pattern = open_stream(f"{served}/shard-{{000000..000007}}.tar")
    assert pattern.urls == remote.urls
    assert_same(epoch(batches(pattern)), epoch(batches(local)))


def test_a_broken_connection_is_retried_and_gives_every_sample_once(served: str, folder: Path) -> None:
    Server.breaks["shard-000003.tar"] = 2
    found = list(read_samples(f"{served}/shard-000003.tar", 3))
    assert found == list(read_samples(str(folder / "shard-000003.tar"), 3))
    assert Server.requests["shard-000003.tar"] == 3


def test_a_missing_shard_is_an_error_at_once(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = r"cannot read the shard http.*/shard-000099.tar: the server answered 404 File not found; repair it"
    with pytest.raises(BrokenShard, match=message):
        list(read_samples(f"{served}/shard-000099.tar", 0))
    with pytest.raises(ValueError, match=r"cannot read http.*/elsewhere/shards\.json: the server answered 404"):
        open_stream(f"{served}/elsewhere/shards.json")
    assert Server.requests == {"shard-000099.tar": 1, "shards.json": 1}
    assert capsys.readouterr().err == ""


def test_a_server_in_trouble_is_asked_again_with_a_word_each_time(
    served: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Server, "do_GET", lambda self: self.send_error(500))
    message = r"cannot read http.*/shards\.json \(4 attempts\): the server answered 500 Internal Server Error$"
    with pytest.raises(ValueError, match=message):
        open_stream(f"{served}/shards.json")
    said = capsys.readouterr().err.splitlines()
    why = f"{served}/shards.json: the server answered 500 Internal Server Error"
    assert said == [f"{why}; attempt {n} of 4 follows" for n in (2, 3, 4)]


def test_a_server_that_falls_silent_is_given_up(
    served: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()

    def half(self: Server) -> None:
        data = (folder / "shard-000003.tar").read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        released.wait(30)

    monkeypatch.setattr(Server, "do_GET", half)
    monkeypatch.setattr(fetch, "SILENCE", 0.2)
    with pytest.raises(BrokenShard, match=r"\(4 attempts\): nothing came for 0\.2 seconds; repair it"):
        list(read_samples(f"{served}/shard-000003.tar", 3))
    released.set()
    assert capsys.readouterr().err.count("nothing came for 0.2 seconds; attempt") == 3


def test_a_program_that_falls_silent_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SILENCE", 0.5)
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    with pytest.raises(BrokenShard, match=r"nothing came for 0\.5 seconds"):
        list(read_samples(f"pipe:sleep 60 & echo $! > {tmp_path}/child; wait", 0))
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.05)


def test_other_schemes_say_what_they_need(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"hdfs:// is not supported \(http://, .*, s3:// are\); .*'pipe:COMMAND'"):
        open_stream("hdfs://host/x-{0..9}.tar")
    monkeypatch.setenv("PATH", str(tmp_path))
    for scheme, program in (("s3", "aws"), ("gs", "gsutil")):
        with pytest.raises(ValueError, match=f"{scheme}:// needs the program {program}, which is not installed"):
            open_stream(f"{scheme}://bucket/x-{{0..9}}.tar")
        with pytest.raises(ValueError, match=f"{scheme}:// needs the program {program}"):
            open_stream(f"{scheme}://bucket/shards.json")
    assert capsys.readouterr().err == "", "nothing was tried again"
    (tmp_path / "aws").write_text(
        f'#!/bin/sh\n[ "$*" = "s3 cp s3://b/x.tar -" ] && /bin/cat {folder}/shard-000003.tar\n'
    )
    (tmp_path / "aws").chmod(0o700)
    assert len(list(read_samples("s3://b/x.tar", 3))) == PER_SHARD
    assert len(list(read_samples(f"file://{folder}/shard-000003.tar", 3))) == PER_SHARD


def test_headers_without_end_are_damage(tmp_path: Path) -> None:
    member = tarfile.TarInfo("name")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 512
    chain = (member.tobuf(tarfile.USTAR_FORMAT) + b"name".ljust(512, b"\0")) * 3000
    (tmp_path / "a.tar").write_bytes(chain + bytes(1024))
    with pytest.raises(BrokenShard, match=r"a\.tar: extended headers that follow each other without end; repair"):
        list(read_samples(str(tmp_path / "a.tar"), 0))


def test_a_command_can_fetch_a_shard_and_its_failure_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
    stream = open_stream(f"pipe:cat {folder}/shard-{{000000..000007}}.tar")
    assert_same(epoch(batches(stream)), epoch(batches(open_stream(str(folder)))))
    with pytest.raises(BrokenShard, match="the program that fetches it exited with code 3: no such bucket"):
        list(read_samples(f"pipe:head -c 20000 {folder}/shard-000000.tar; echo no such bucket >&2; exit 3", 0))
