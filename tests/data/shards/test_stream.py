"""A stream has the pixels of the folder, each image once, and any batch again after a stop; a bad shard is named."""

import functools
import io
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader

from glf.config.inference import ShardConfig
from glf.data.decode import StoredSize
from glf.data.shards import read as module
from glf.data.shards.index import is_stream, open_stream
from glf.data.shards.loader import StreamReader, StreamSteps, WorkerSampleStream, stream_loader, workers_of
from glf.data.shards.read import PLACE, BrokenShard, Sample, read_samples
from glf.data.shards.stream import ShardStream
from glf.data.sources import load
from glf.sharding import shard
from glf.types import Batch
from machine import files_up_to
from photos import write_photos

COUNT, PER_SHARD, BATCH = 96, 12, 8  # eight shards, twelve batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of real images with labels and rows of a prior. Nobody writes into it."""
    place = tmp_path_factory.mktemp("stream")
    source = load("fashion-mini")
    np.savez(place / "few.npz", train_images=source.pixels[:COUNT], train_labels=source.targets[:COUNT])
    settings = ShardConfig(
        data=str(place / "few.npz"), out=place / "out", per_shard=PER_SHARD, prior="pixels", prior_width=6
    )
    shard(settings, Console(file=io.StringIO()))
    return place / "out"


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    out = tmp_path / "copied"
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    return out


def batches(
    stream: ShardStream, workers: int = 0, *, images: int = COUNT, skipped: Path | None = None, **settings: Any
) -> DataLoader[Batch]:
    shared = {"share": BATCH, "seed": 0, "shuffle": 15, "rank": 0, "world": 1, "prior": True, **settings}
    reader = StreamReader(stream, skipped=skipped, **shared)  # type: ignore[arg-type]
    return stream_loader(reader, StreamSteps(images, shared["share"] * shared["world"]), workers=workers)  # type: ignore[operator]


def epoch(loader: DataLoader[Batch], number: int = 0, first: int = 0) -> list[Batch]:
    assert isinstance(loader.sampler, StreamSteps)
    loader.sampler.begin(number, first)
    return list(loader)


def rows(found: list[Batch]) -> list[list[int]]:
    return [batch.indices.tolist() for batch in found]


def assert_same(a: list[Batch], b: list[Batch]) -> None:
    assert len(a) == len(b) > 0
    for one, other in zip(a, b, strict=True):
        for name in ("images", "target", "indices", "prior"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def rewrite(path: Path, changed: dict[int, bytes | None], ending: str = ".png") -> None:
    """The shard with other bytes in its images of these places, or without them; or in other files."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    place = -1
    with tarfile.open(path, "w") as tar:
        for member, data in members:
            if member.name.endswith(ending):
                place += 1
                data = changed.get(place, data)  # type: ignore[assignment]
            if data is not None:
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


# --- pixels


@pytest.mark.parametrize("size", [None, 28, 64])
def test_pixels_are_those_of_the_packed_folder(size: int | None, tmp_path: Path, console: Console) -> None:
    photos = write_photos(tmp_path / "camera", 12)
    shard(ShardConfig(data=str(photos), out=tmp_path / "out", per_shard=5), console)
    packed = load(str(photos), size=size, store="pack")
    stream = open_stream(str(tmp_path / "out"), size=size)
    seen = set()
    for number, url in enumerate(stream.urls):
        for sample in read_samples(url, number):
            assert isinstance(sample, Sample)
            row = int(sample.name.rpartition("/")[2])
            found = stream.read(sample, prior=False)
            assert np.array_equal(found.pixels, packed.pixels[row])
            assert found.target == packed.targets[row]
            seen.add(row)
    assert seen == set(range(12))


@pytest.mark.parametrize(("side", "size"), [(40, 28), (40, 40), (128, 128), (128, None), (300, 128)])
def test_pixels_of_one_size_are_too(side: int, size: int | None, tmp_path: Path, console: Console) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(3):
        noise = np.random.default_rng(i).integers(0, 255, (side, side, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / "photos" / f"{i}.jpg")
    shard(ShardConfig(data=str(tmp_path / "photos"), out=tmp_path / "out"), console)
    packed = load(str(tmp_path / "photos"), size=size, store="pack")
    stream = open_stream(str(tmp_path / "out"), size=size)
    assert packed.size == (stream.form.side,) * 2
    for sample in read_samples(stream.urls[0], 0):
        assert isinstance(sample, Sample)
        assert np.array_equal(stream.pixels(sample.image), packed.pixels[int(sample.name.rpartition("/")[2])])


# --- order


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_image_comes_once_in_an_epoch(workers: int, folder: Path) -> None:
    loader = batches(open_stream(str(folder)), workers)
    found = rows(epoch(loader, 3))
    assert [len(batch) for batch in found] == [BATCH] * (COUNT // BATCH)
    every = {shard_ * PLACE + place for shard_ in range(COUNT // PER_SHARD) for place in range(PER_SHARD)}
    assert Counter(row for batch in found for row in batch) == Counter(every)
    assert any(len({row // PLACE for row in batch}) > 2 for batch in found), "batches mix shards"
    assert rows(epoch(loader, 4)) != found


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_have_no_image_in_common_and_all_together(workers: int, folder: Path) -> None:
    stream = open_stream(str(folder))
    shares = [rows(epoch(batches(stream, workers, share=4, rank=rank, world=2))) for rank in range(2)]
    assert [len(share) for share in shares] == [12, 12]
    seen = Counter(row for share in shares for batch in share for row in batch)
    assert len(seen) == COUNT
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_epoch_goes_on_at_any_batch_bit_for_bit(workers: int, copied: Path) -> None:
    rewrite(copied / "shard-000002.tar", {3: b"no image", 4: None})
    rewrite(copied / "shard-000005.tar", {0: b""})
    stream = open_stream(str(copied))
    whole = batches(stream, workers, images=150)  # more than there are: shards come again
    first, second = epoch(whole, 1), epoch(whole, 2)
    assert len(first) == 18
    for k in sorted(np.random.default_rng(workers).choice(np.arange(1, 18), 2, replace=False).tolist()):
        again = batches(stream, workers, images=150)
        assert len(again) == 18  # as many as an epoch has: Lightning counts from the first
        assert_same(epoch(again, 1, k), first[k:])
        assert isinstance(again.sampler, StreamSteps)
        again.sampler.set_epoch(2)  # as Lightning does: the next epoch begins with its first batch
        assert_same(list(again), second)


def test_what_is_passed_over_is_not_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    read = ShardStream.read

    def counted(self: ShardStream, sample: Sample, *, prior: bool) -> Any:
        decoded.append(sample.name)
        return read(self, sample, prior=prior)

    monkeypatch.setattr(ShardStream, "read", counted)
    assert len(epoch(batches(open_stream(str(folder))), 0, 10)) == 2
    assert len(decoded) == 2 * BATCH


def test_the_order_follows_from_seed_and_epoch(folder: Path) -> None:
    stream = open_stream(str(folder))
    orders = [rows(epoch(batches(stream, seed=seed), number)) for seed in range(2) for number in range(2)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert orders[0] == rows(epoch(batches(stream, seed=0), 0))


def test_short_epochs_go_through_other_shards(folder: Path) -> None:
    loader = batches(open_stream(str(folder)), images=2 * BATCH)
    shards = [{row // PLACE for batch in rows(epoch(loader, number)) for row in batch} for number in range(6)]
    assert all(len(some) <= 3 for some in shards)
    assert len(set().union(*shards)) > 4


def test_a_longer_epoch_starts_over_when_everything_was_seen(folder: Path) -> None:
    found = [row for batch in rows(epoch(batches(open_stream(str(folder)), images=2 * COUNT))) for row in batch]
    assert set(Counter(found[:COUNT]).values()) == set(Counter(found[COUNT:]).values()) == {1}
    assert found[:COUNT] != found[COUNT:]


def test_a_sample_waits_among_as_many_as_were_asked_for(folder: Path) -> None:
    urls = open_stream(str(folder)).urls
    settings: dict[str, Any] = {"seed": 0, "epoch": 0, "number": 0, "of": 1, "note": print}
    lane = WorkerSampleStream(urls, shuffle=20, **settings)
    for _ in range(30):
        next(lane)
        assert len(lane.waiting) == 20
    unmixed = WorkerSampleStream(urls, shuffle=1, **settings)
    order = [next(unmixed).row // PLACE for _ in range(PER_SHARD - 1)]
    assert set(order) == {unmixed.shards(0)[0]}


def test_there_are_no_more_workers_than_shards_for_them(folder: Path) -> None:
    stream = open_stream(str(folder))
    assert [workers_of(stream, workers, world) for workers, world in ((2, 1), (16, 1), (16, 3), (0, 8))] == [2, 8, 2, 0]
    with pytest.raises(ValueError, match=r"8 shards cannot be shared by 9 processes: write more .* --per-shard"):
        workers_of(stream, 0, 9)


def test_an_epoch_cannot_begin_behind_its_end() -> None:
    with pytest.raises(ValueError, match="12 batches cannot begin with batch 13"):
        StreamSteps(COUNT, BATCH).begin(0, 13)
    with pytest.raises(ValueError, match="a batch of 100 is larger than an epoch of 96"):
        StreamSteps(COUNT, 100)


# --- what is bad


def test_bad_samples_are_listed_once_and_others_take_their_places(copied: Path, tmp_path: Path) -> None:
    rewrite(copied / "shard-000002.tar", {3: b"no image", 4: None})
    stream, skipped = open_stream(str(copied)), tmp_path / "skipped.txt"
    skipped.write_text("before\tby the probe\n")
    for _ in range(2):
        found = epoch(batches(stream, 2, skipped=skipped))
        assert [len(batch.indices) for batch in found] == [BATCH] * 12
        assert all(len(set(batch.indices.tolist())) == BATCH for batch in found), "none twice in a batch"
        assert 2 * PLACE + 3 not in {row for batch in rows(found) for row in batch}
    lines = skipped.read_text().splitlines()
    assert lines[0] == "before\tby the probe"
    assert sorted(line.partition("/")[0] for line in lines[1:]) == ["shard-000002.tar"] * 2
    assert sorted(line.partition("\t")[2].partition(" ")[0] for line in lines[1:]) == ["no", "not"]


def test_bad_labels_and_bad_rows_of_the_prior_are_bad_samples(folder: Path) -> None:
    stream = open_stream(str(folder))
    sample = next(read_samples(stream.urls[0], 0))
    assert isinstance(sample, Sample)
    good = stream.read(sample, prior=True)
    assert good.target == int(sample.label or b"")
    assert good.prior is not None
    assert good.prior.shape == (6,)
    for part, value in (("label", b"cat"), ("prior", None), ("prior", b""), ("prior", _npy([np.nan] * 6))):
        with pytest.raises((ValueError, EOFError)):
            stream.read(sample._replace(**{part: value}), prior=True)
    with pytest.raises(ValueError, match="no row of 6"):
        stream.read(sample._replace(prior=_npy([1.0] * 5)), prior=True)


def test_a_label_that_is_no_class_is_a_bad_sample(folder: Path, copied: Path, tmp_path: Path) -> None:
    """Nor does one that nobody can count to take memory for as many classes."""
    stream = open_stream(str(folder))
    sample = next(read_samples(stream.urls[0], 0))
    assert isinstance(sample, Sample)
    assert stream.read(sample._replace(label=b"-1"), prior=False).target == -1
    for label in (b"10", b"-2", b"1" + b"0" * 30):
        with pytest.raises(ValueError, match="its label is none of the 10 classes"):
            stream.read(sample._replace(label=label), prior=False)
    rewrite(copied / "shard-000000.tar", {2: b"9" * 12, 3: b"9" * 30}, ".cls")
    unknown = open_stream(str(copied / "shard-{000000..000007}.tar"))
    skipped = unknown.images(unknown.urls[0], COUNT).skipped
    assert [one.why for one in skipped] == ["its label is none of the 1,000,000 classes"] * 2
    listed = tmp_path / "skipped.txt"
    assert len(epoch(batches(unknown, 1, skipped=listed))) == COUNT // BATCH
    assert listed.read_text().count("its label is none of") == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_list_of_bad_samples_that_cannot_be_written_is_one_line(workers: int, copied: Path, tmp_path: Path) -> None:
    rewrite(copied / "shard-000002.tar", {3: b"no image"})
    listed = tmp_path / "skipped.txt"
    listed.write_text("a line\n" * 100_000)  # longer than a batch in shared memory, which is a file too
    with files_up_to(700_010), pytest.raises(OSError, match="could not be written") as error:
        epoch(batches(open_stream(str(copied)), workers, skipped=listed))
    assert (
        str(error.value) == f"{listed} could not be written (File too large): make room there and go on with --resume"
    )


def _npy(row: list[float]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(row, np.float32))
    return file.getvalue()


def test_colours_among_grey_images_are_bad_samples(folder: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (28, 28)).save(file, "PNG")
    with pytest.raises(ValueError, match="in colour among grey"):
        open_stream(str(folder)).pixels(file.getvalue())


def test_nothing_but_bad_images_is_an_error_and_no_endless_loop(copied: Path) -> None:
    stream = open_stream(str(copied))
    for path in copied.glob("*.tar"):
        rewrite(path, dict.fromkeys(range(PER_SHARD), b"no image"))
    with pytest.raises(BrokenShard, match="none of 23 images in a row could be read"):
        epoch(batches(stream))
    for path in copied.glob("*.tar"):
        rewrite(path, dict.fromkeys(range(PER_SHARD)))
    with pytest.raises(BrokenShard, match="no images in any of the shards that one worker reads"):
        epoch(batches(stream))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_is_cut_short_is_named_in_one_line(workers: int, copied: Path) -> None:
    stream = open_stream(str(copied))
    whole = (copied / "shard-000004.tar").read_bytes()
    (copied / "shard-000004.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BrokenShard) as error:
        epoch(batches(stream, workers))
    assert str(error.value).startswith(f"the shard {copied / 'shard-000004.tar'} cannot be read: ")
    assert str(error.value).endswith("; put it right and go on with --resume")
    assert len(str(error.value).splitlines()) == 1


def test_a_cut_is_noticed_wherever_it_is(folder: Path, tmp_path: Path) -> None:
    path = folder / "shard-000001.tar"
    with tarfile.open(path) as tar:
        members = list(tar)
    whole, end = path.read_bytes(), members[-1].offset_data + 512 * -(-members[-1].size // 512)
    assert len(list(read_samples(str(path), 0))) == PER_SHARD
    cuts = [
        0,
        100,
        512,
        600,
        members[5].offset,
        members[5].offset + 100,
        members[5].offset_data,
        end - 1,
        end,
        end + 99,
    ]
    for cut in cuts:
        (tmp_path / "cut.tar").write_bytes(whole[:cut])
        with pytest.raises(BrokenShard, match=r"cut\.tar cannot be read"):
            list(read_samples(str(tmp_path / "cut.tar"), 0))
    (tmp_path / "cut.tar").write_bytes(whole[: end + 512])  # one block of zeros is an end
    assert len(list(read_samples(str(tmp_path / "cut.tar"), 0))) == PER_SHARD
    damaged = bytearray(whole)
    damaged[members[7].offset + 3] ^= 1
    (tmp_path / "cut.tar").write_bytes(damaged)
    with pytest.raises(BrokenShard, match="bad checksum"):
        list(read_samples(str(tmp_path / "cut.tar"), 0))


# --- from elsewhere


class Server(SimpleHTTPRequestHandler):
    """Serves files; breaks off in the middle of as many answers as ``breaks`` says."""

    asked: ClassVar[Counter[str]] = Counter()
    breaks: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.asked[name] += 1
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
    """The address of the shards."""
    monkeypatch.setattr(module, "PAUSE", 0.01)
    monkeypatch.setattr(Server, "asked", Counter())
    monkeypatch.setattr(Server, "breaks", Counter())
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_url_gives_what_the_folder_gives(served: str, folder: Path) -> None:
    local, distant = open_stream(str(folder)), open_stream(f"{served}/shards.json")
    assert (distant.count, distant.form, distant.key, distant.classes) == (
        local.count,
        local.form,
        local.key,
        local.classes,
    )
    assert_same(epoch(batches(distant, 2)), epoch(batches(local, 2)))
    pattern = open_stream(f"{served}/shard-{{000000..000007}}.tar")
    assert pattern.urls == distant.urls
    assert_same(epoch(batches(pattern)), epoch(batches(local)))


def test_a_connection_that_breaks_is_tried_again_and_gives_every_sample_once(served: str, folder: Path) -> None:
    Server.breaks["shard-000003.tar"] = 2
    found = list(read_samples(f"{served}/shard-000003.tar", 3))
    assert found == list(read_samples(str(folder / "shard-000003.tar"), 3))
    assert Server.asked["shard-000003.tar"] == 3


def test_what_is_not_there_is_an_error_after_a_few_tries(served: str) -> None:
    with pytest.raises(BrokenShard, match=r"shard-000099.tar cannot be read \(4 tries\): .*code 22; put it right"):
        list(read_samples(f"{served}/shard-000099.tar", 0))
    assert Server.asked["shard-000099.tar"] == 4
    with pytest.raises((ValueError, OSError), match=r"exit 22|is it there"):
        open_stream(f"{served}/elsewhere/shards.json")


def test_a_command_can_fetch_a_shard_and_may_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    stream = open_stream(f"pipe:cat {folder}/shard-{{000000..000007}}.tar")
    assert_same(epoch(batches(stream)), epoch(batches(open_stream(str(folder)))))
    with pytest.raises(BrokenShard, match="code 3"):
        list(read_samples(f"pipe:head -c 20000 {folder}/shard-000000.tar; exit 3", 0))


# --- what --data may say


def test_a_pattern_and_a_list_are_the_shards_that_they_name(folder: Path, tmp_path: Path) -> None:
    pattern = open_stream(f"{folder}/shard-{{000002..000004}}.tar")
    assert [Path(url).name for url in pattern.urls] == [f"shard-00000{i}.tar" for i in (2, 3, 4)]
    (tmp_path / "list.txt").write_text(f"# two\n{folder}/shard-{{000002,000003}}.tar\n\n{folder}/shard-000004.tar\n")
    named = open_stream(str(tmp_path / "list.txt"))
    assert (named.urls, named.key, named.form) == (pattern.urls, pattern.key, pattern.form)
    assert all(is_stream(data) for data in (str(folder), str(tmp_path / "list.txt"), "s3://bucket/x.tar"))
    assert not any(is_stream(data) for data in ("cifar10", str(tmp_path), str(folder / "shard-000000.tar"), ""))


def test_first_samples_say_what_a_description_would(folder: Path) -> None:
    described, looked_at = open_stream(str(folder)), open_stream(f"{folder}/shard-{{000000..000007}}.tar")
    assert looked_at.form == described.form == StoredSize(28, 1, False)
    assert (looked_at.count, looked_at.prior_width, looked_at.classes) == (None, 6, ())
    assert np.allclose(looked_at.mean, described.mean, atol=0.1)
    labels = looked_at.images(looked_at.urls[0], 9).targets
    assert len(labels) == 9
    assert (labels >= 0).all()
    assert (open_stream(str(folder), labels="none").images(described.urls[0], 9).targets == -1).all()


def test_what_is_held_out_is_not_counted(folder: Path, copied: Path) -> None:
    rest, last = open_stream(str(folder)).held_out()
    assert (len(rest.urls), rest.count) == (7, COUNT - PER_SHARD)
    assert last.endswith("shard-000007.tar")
    rewrite(Path(str(copied / "shard-000007.tar")), {2: b"no image"})
    images = rest.images(str(copied / "shard-000007.tar"), 100)
    assert len(images) == PER_SHARD - 1
    assert images.labelled
    assert images.skipped[0].name.startswith("shard-000007.tar/")


def test_mistakes(folder: Path, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"2 of the 10 shards of .* are not there, the first is .*shard-000008.tar"):
        open_stream(f"{folder}/shard-{{000000..000009}}.tar")
    (copied / "shard-000003.tar").unlink()
    with pytest.raises(ValueError, match=r"1 of the 8 shards of .* the first is .*shard-000003.tar"):
        open_stream(str(copied))
    for command in ("pipe:touch /tmp/owned", "PIPE:touch /tmp/owned; echo ://", "\x01pipe:touch /tmp/owned; echo ://"):
        (tmp_path / "list.txt").write_text(f"{command}\n")
        with pytest.raises(ValueError, match="commands are taken from --data alone"):
            open_stream(str(tmp_path / "list.txt"))
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(ValueError, match="names no shards"):
        open_stream(str(tmp_path / "list.txt"))
    with pytest.raises(ValueError, match="is a stream of shards, which only pretraining reads"):
        load(str(folder))


def test_the_extra_is_named_where_it_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises(ValueError, match=r"pip install 'glf\[shards\]'"):
        open_stream(f"{folder}/shard-{{000000..000007}}.tar")
    with pytest.raises(ValueError, match=r"pip install 'glf\[shards\]'"):
        next(read_samples(str(folder / "shard-000000.tar"), 0))
