"""Shards as a source of images for training: what is known of them, and what every image is brought to."""

import hashlib
import io
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.data.decode import StoredSize, decode_as, quiet
from glf.data.images import ImageSet, Skipped, Storage
from glf.data.shards.read import BrokenShard, Sample, read_samples

MOST_CLASSES = 1_000_000  # where nobody says how many there are: more is a mistake, or somebody's malice


class Read(NamedTuple):
    """A sample whose parts could all be read."""

    pixels: NDArray[np.uint8]  # (side, side, channel)
    target: int  # -1 where there is no label
    prior: NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True)
class ShardStream:
    """Shards, and what is known of the images in them."""

    name: str  # what the user asked for
    urls: tuple[str, ...]
    count: int | None  # images of all of these shards, if that is known
    form: StoredSize
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]  # empty where there are no labels, or where it is not known which there are
    labels: bool  # are to be read
    prior: str | None  # the prior's name; None where there are no rows of one
    prior_width: int | None  # of the rows beside the images
    key: str
    in_last: int | None = None  # images of the last shard

    @property
    def storage(self) -> Storage:
        return "streamed"

    def held_out(self) -> tuple["ShardStream", str]:
        """The same without its last shard, and that shard."""
        assert len(self.urls) > 1, "it would be all there is"
        count = None if self.count is None or self.in_last is None else self.count - self.in_last
        return replace(self, urls=self.urls[:-1], count=count, in_last=None), self.urls[-1]

    def read(self, sample: Sample, *, prior: bool) -> Read:
        """A sample as training wants it; raises whatever is wrong with it."""
        return Read(
            self.pixels(sample.image),
            self._target(sample.label) if self.labels and sample.label is not None else -1,
            self._prior(sample.prior) if prior else None,
        )

    def pixels(self, image: bytes) -> NDArray[np.uint8]:
        """What a packed folder of the same files holds: resized like its images, or as it is where it has the side."""
        side, channels, _ = self.form
        found = decode_as(image, self.form._replace(resized=True))
        if found.shape[2] > channels:
            raise ValueError("an image in colour among grey ones")
        return np.broadcast_to(found, (side, side, channels))

    def _target(self, label: bytes) -> int:
        """The class; -1, as elsewhere, is no label."""
        found, classes = int(label), len(self.classes) or MOST_CLASSES
        if not -1 <= found < classes:
            raise ValueError(f"its label is none of the {classes:,} classes")
        return found

    def _prior(self, data: bytes | None) -> NDArray[np.float32]:
        if data is None:
            raise ValueError("it has no prior.npy, unlike others")
        row = np.load(io.BytesIO(data), allow_pickle=False)
        if row.shape != (self.prior_width,) or row.dtype != np.float32 or not np.isfinite(row).all():
            raise ValueError(f"its prior.npy is no row of {self.prior_width} finite numbers in float32")
        return np.asarray(row, np.float32)

    def images(self, url: str, most: int) -> ImageSet:
        """The first images of one shard, in memory."""
        pixels, targets, skipped = list[NDArray[np.uint8]](), list[int](), list[Skipped]()
        with quiet():
            for sample in read_samples(url, self.urls.index(url) if url in self.urls else len(self.urls)):
                if len(pixels) == most:
                    break
                try:
                    found = self.read(_good(sample), prior=False)
                except Exception as error:  # PIL's plugins raise almost anything on a broken file
                    skipped.append(why_skipped(sample, error))
                    continue
                pixels.append(found.pixels)
                targets.append(found.target)
        if not pixels:
            raise BrokenShard(f"no images in the shard {url}")
        names = self.classes or tuple(str(label) for label in range(max(targets) + 1))
        return ImageSet(
            name=self.name,
            pixels=np.stack(pixels),
            targets=np.array(targets, np.int64),
            classes=names,
            key=hashlib.blake2b(f"{self.key} {url}".encode(), digest_size=8).hexdigest(),
            skipped=tuple(skipped),
        )


def _good(sample: Sample | Skipped) -> Sample:
    if isinstance(sample, Skipped):
        raise ValueError(sample.why)
    return sample


def why_skipped(sample: Sample | Skipped, error: Exception) -> Skipped:
    return Skipped(sample.name, str(error) or type(error).__name__)
