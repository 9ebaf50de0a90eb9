"""One shard -> its samples, from first to last, or an error: never a part of them without a word."""

import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from typing import Any, NamedTuple
from urllib.parse import urlparse

from glf.data.decode import EXTENSIONS
from glf.data.files import LARGEST
from glf.data.images import Skipped, WorkerError
from glf.files import printable

EXTRA = "reading shards needs the package webdataset: pip install 'glf[shards]'"
TRIES = 4  # of a shard that comes from elsewhere
PAUSE = 0.5  # seconds before the second try; twice as many before each that follows
PLACE = 2**32  # a sample's row is its shard's number times this, plus its place in the shard


class BrokenShard(WorkerError):  # noqa: N818 (named after what is broken)
    """A shard that cannot be opened, is damaged or cut short, or holds no images."""


class Sample(NamedTuple):
    """An image and what lies beside it, as bytes."""

    row: int
    name: str  # shard/key
    image: bytes
    label: bytes | None
    prior: bytes | None


def webdataset() -> Any:
    """The package, or an error that names the extra; imported here and nowhere else."""
    try:
        import webdataset as found
    except ModuleNotFoundError:
        raise ValueError(EXTRA) from None
    return found


def is_command(url: str) -> bool:
    """Whether what opens shards would run it: PIPE: too, and with signs in front that are not printed."""
    return urlparse(url).scheme == "pipe"


def is_local(url: str) -> bool:
    """Whether it is a path, and no URL or command."""
    return not is_command(url) and "://" not in url


def read_samples(url: str, number: int) -> Iterator[Sample | Skipped]:
    """The samples of the shard of this number among all, in their order; what has no image is said to be skipped.

    A shard that comes from elsewhere is tried again a few times, and goes on behind the last sample that it gave.
    """
    wds, done = webdataset(), 0
    for attempt in count(1):
        try:
            for sample in islice(_once(wds, url, number), done, None):
                done += 1
                yield sample
            return
        except Exception as error:
            if attempt == TRIES or is_local(url):
                tries = f" ({attempt} tries)" if attempt > 1 else ""
                why = printable(str(error) or type(error).__name__)
                raise BrokenShard(
                    f"the shard {printable(url)} cannot be read{tries}: {why}; put it right and go on with --resume"
                ) from None
            time.sleep(PAUSE * 2 ** (attempt - 1))


def _once(wds: Any, url: str, number: int) -> Iterator[Sample | Skipped]:
    stream = wds.gopen(url)
    try:
        for place, found in enumerate(wds.tariterators.group_by_keys(_tar_files(stream, url))):
            yield _sample(found, url, number * PLACE + place)
    except Exception as error:
        with suppress(Exception):
            stream.close()
        code = getattr(stream, "status", None)  # of the program that fetches it, which knows better what went wrong
        raise OSError(f"{error}, and the program that fetches it ended with code {code}" if code else error) from error
    finally:
        with suppress(Exception):  # a program that is not listened to any more complains
            stream.close()


class _Header(tarfile.TarInfo):
    """A header of a tar that is whole: Python's reader takes whatever else it meets for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> "_Header":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError("it is cut short" if len(buf) < tarfile.BLOCKSIZE else str(error)) from None


def _tar_files(stream: Any, url: str) -> Iterator[dict[str, Any]]:
    """The files of a tar that can only be read onwards, as webdataset wants to group them."""
    with tarfile.open(fileobj=stream, mode="r|*", tarinfo=_Header) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # a reader of streams has no use for them
            if not 0 <= member.size <= LARGEST:
                raise tarfile.ReadError(f"its member {member.name} claims {member.size:,} bytes")
            if not member.isreg() or member.issparse():
                continue
            file = tar.extractfile(member)
            assert file is not None
            yield {"fname": member.name, "data": file.read(), "__url__": url}


def _sample(found: dict[str, Any], url: str, row: int) -> Sample | Skipped:
    name = f"{url.rsplit('/', 1)[-1]}/{found['__key__']}"
    ending = next((part for part in found if f".{part}" in EXTENSIONS), None)
    if ending is None:
        parts = ", ".join(part for part in found if not part.startswith("__"))
        return Skipped(name, f"no image beside {parts}")
    return Sample(row, name, found[ending], found.get("cls"), found.get("prior.npy"))
