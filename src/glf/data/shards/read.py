"""Read the samples of one shard and decode them. A truncated or damaged shard raises; it never ends silently."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.data.decode import EXTENSIONS, StoredSize, decode_as, quiet
from glf.data.files import MAX_BYTES
from glf.data.images import ImageSet, Storage, WorkerError
from glf.data.shards.fetch import open_url, reason, wait_for_retry
from glf.data.source import MAX_CLASSES, Skipped
from glf.data.tar import BoundedHeader, why_damaged
from glf.files import printable

SHARD_STRIDE = 2**32  # a sample's number is its shard's number times this, plus its position in the shard


class BrokenShard(WorkerError):  # noqa: N818 (named after what is broken)
    """A shard that cannot be opened, is damaged or truncated, or contains no images."""


class ShardSample(NamedTuple):
    """An undecoded sample: the bytes of its tar members."""

    number: int  # unique within the set of shards
    name: str  # shard/key
    image: bytes
    label: bytes | None
    prior: bytes | None


class DecodedSample(NamedTuple):
    """A sample as training uses it."""

    pixels: NDArray[np.uint8]  # (side, side, channel)
    target: int  # -1 without a label
    prior: NDArray[np.float32] | None


def webdataset() -> Any:
    """Import the optional package webdataset. All other modules import it through this function."""
    try:
        import webdataset as module
    except ModuleNotFoundError:
        raise ValueError("reading shards needs the package webdataset: pip install 'glf[shards]'") from None
    return module


def read_samples(url: str, shard: int) -> Iterator[ShardSample | Skipped]:
    """Yield the samples of a shard in order; ``shard`` is its number within the set. Samples without an image are
    yielded as ``Skipped``.

    Reading a remote shard is retried a few times; a retry continues after the last sample that was yielded.
    """
    wds, done = webdataset(), 0
    for attempt in count(1):
        try:
            for sample in islice(_read_once(wds, url, shard), done, None):
                done += 1
                yield sample
            return
        except Exception as error:
            if not wait_for_retry(url, error, attempt):
                attempts = f" ({attempt} attempts)" if attempt > 1 else ""
                raise BrokenShard(
                    f"cannot read the shard {printable(url)}{attempts}: {reason(error)}; repair it, and continue a run"
                    " that had begun with --resume"
                ) from None


def _read_once(wds: Any, url: str, shard: int) -> Iterator[ShardSample | Skipped]:
    with open_url(url) as stream:
        for position, members in enumerate(wds.tariterators.group_by_keys(_tar_files(stream, url))):
            name = f"{url.rsplit('/', 1)[-1]}/{members['__key__']}"
            ending = next((part for part in members if f".{part}" in EXTENSIONS), None)
            if ending is None:
                parts = ", ".join(part for part in members if not part.startswith("__"))
                yield Skipped(name, f"no image, only {parts}")
            else:
                number = shard * SHARD_STRIDE + position
                yield ShardSample(number, name, members[ending], members.get("cls"), members.get("prior.npy"))


class _StrictHeader(BoundedHeader):
    """A tar header that must be valid: by default, Python's reader takes an invalid one for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Any:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError("it is truncated" if len(buf) < tarfile.BLOCKSIZE else str(error)) from None


def _tar_files(stream: io.BufferedIOBase, url: str) -> Iterator[dict[str, Any]]:
    """Yield the files of a tar, read sequentially, in the form that webdataset groups into samples."""
    try:
        yield from _members(stream, url)
    except RecursionError as error:
        raise tarfile.ReadError(why_damaged(error)) from None


def _members(stream: io.BufferedIOBase, url: str) -> Iterator[dict[str, Any]]:
    with tarfile.open(fileobj=stream, mode="r|*", tarinfo=_StrictHeader) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # the list would grow with the archive
            if not 0 <= member.size <= MAX_BYTES:
                raise tarfile.ReadError(f"its member {member.name} claims {member.size:,} bytes")
            if not member.isreg() or member.issparse():
                continue
            file = tar.extractfile(member)
            assert file is not None
            yield {"fname": member.name, "data": file.read(), "__url__": url}


@dataclass(frozen=True, kw_only=True)
class ShardStream:
    """A set of shards and what is known about its images; decodes samples. Opened by ``index.open_stream``."""

    name: str  # as given in --data
    urls: tuple[str, ...]
    count: int | None  # images in all shards; None if unknown
    size: StoredSize  # of decoded images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]  # empty without labels, or if the classes are unknown
    labels: bool  # whether to read labels
    prior: str | None  # name of the prior of the stored features; None if there are none
    prior_width: int | None
    key: str  # changes whenever the shards do
    in_last: int | None = None  # images in the last shard

    @property
    def storage(self) -> Storage:
        return "streamed"

    def held_out(self) -> tuple["ShardStream", str]:
        """The stream without its last shard, and the URL of that shard."""
        assert len(self.urls) > 1, "holding out the only shard would leave none"
        count = None if self.count is None or self.in_last is None else self.count - self.in_last
        return replace(self, urls=self.urls[:-1], count=count, in_last=None), self.urls[-1]

    def decode(self, sample: ShardSample, *, prior: bool) -> DecodedSample:
        """Decode a sample, with or without its prior features. Raises if any part is invalid."""
        return DecodedSample(
            self.pixels(sample.image),
            self._target(sample.label) if self.labels and sample.label is not None else -1,
            self._prior(sample.prior) if prior else None,
        )

    def pixels(self, image: bytes) -> NDArray[np.uint8]:
        """Decode and resize an image to the same pixels as the image cache of a folder would hold."""
        side, channels, _ = self.size
        pixels = decode_as(image, self.size._replace(resized=True))
        if pixels.shape[2] > channels:
            raise ValueError("colour image in a grey data set")
        return np.broadcast_to(pixels, (side, side, channels))

    def _target(self, label: bytes) -> int:
        target, classes = int(label), len(self.classes) or MAX_CLASSES
        if not -1 <= target < classes:  # -1 means no label, as in an ImageSet
            raise ValueError(f"label outside of the {classes:,} classes")
        return target

    def _prior(self, data: bytes | None) -> NDArray[np.float32]:
        if data is None:
            raise ValueError("no prior.npy, unlike other samples")
        features = np.load(io.BytesIO(data), allow_pickle=False)
        if features.shape != (self.prior_width,) or features.dtype != np.float32 or not np.isfinite(features).all():
            raise ValueError(f"prior.npy is not a vector of {self.prior_width} finite float32 values")
        return np.asarray(features, np.float32)

    def images(self, url: str, most: int) -> ImageSet:
        """Load the first ``most`` images of one shard into memory."""
        pixels, targets, skipped = list[NDArray[np.uint8]](), list[int](), list[Skipped]()
        with quiet():
            for sample in read_samples(url, self.urls.index(url) if url in self.urls else len(self.urls)):
                if len(pixels) == most:
                    break
                if isinstance(sample, Skipped):
                    skipped.append(sample)
                    continue
                try:
                    decoded = self.decode(sample, prior=False)
                except Exception as error:  # PIL's plugins raise almost anything on a broken file
                    skipped.append(skipped_sample(sample, error))
                    continue
                pixels.append(decoded.pixels)
                targets.append(decoded.target)
        if not pixels:
            raise BrokenShard(f"no images in the shard {url}")
        return ImageSet(
            name=self.name,
            pixels=np.stack(pixels),
            targets=np.array(targets, np.int64),
            classes=self.classes or tuple(str(label) for label in range(max(targets) + 1)),
            key=hashlib.blake2b(f"{self.key} {url}".encode(), digest_size=8).hexdigest(),
            skipped=tuple(skipped),
        )


def skipped_sample(sample: ShardSample, error: Exception) -> Skipped:
    """The entry of skipped.txt for a sample that could not be decoded."""
    return Skipped(sample.name, str(error) or type(error).__name__)
