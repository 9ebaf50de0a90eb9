"""Images -> WebDataset shards: tars of samples, each an image with its label and its row of the prior beside it."""

import hashlib
import io
import os
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from glf.data.decode import header_size
from glf.data.decode_all import BAR_FROM
from glf.data.images import ImageSet, statistics
from glf.data.lazy import ChangedFile, DecodeOnRead
from glf.data.shards.index import INDEX_FILE, ShardIndex, ShardPrior, parse_index, shard_name
from glf.files import atomic_write, exclusive_lock, printable, remove_leftovers

PLAN = "plan.json"  # shards.json goes by this name until all shards are there
SKIPPED = "skipped.txt"
GO_ON = "make room there and give the same command again: shards that are whole are kept"


def described(
    images: ImageSet,
    *,
    split: str,
    per_shard: int,
    seed: int,
    prior: np.ndarray | None = None,
    prior_name: str = "",
) -> ShardIndex:
    """What these images are going to be as shards."""
    if per_shard < 1:
        raise ValueError(f"a shard holds one image at least, got {per_shard}")
    mean, std = statistics(images)
    note = None
    if prior is not None:
        digest = hashlib.blake2b(np.ascontiguousarray(prior).data, digest_size=8).hexdigest()
        note = ShardPrior(name=prior_name, width=prior.shape[1], digest=digest)
    return ShardIndex(
        name=images.name,
        split=split,
        key=images.key,
        images=len(images),
        per_shard=per_shard,
        shards=-(-len(images) // per_shard),
        seed=seed,
        channels=images.channels,
        side=_common_side(images),
        mean=mean,
        std=std,
        classes=images.classes,
        labelled=images.labelled,
        prior=note,
    )


def write_shards(
    images: ImageSet,
    plan: ShardIndex,
    out: Path,
    *,
    prior: np.ndarray | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> int:
    """Write what is not there yet; returns how many shards that was.

    The images are shuffled over the shards, or folders of classes would become shards of one class. A shard appears
    whole or not at all, so what a killed command left is good. shards.json comes last.
    """
    from rich.console import Console  # here, because the command line's help should not wait for it
    from rich.progress import Progress

    out.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(out / "shards"):
        remove_leftovers(out)
        _settle(plan, out, overwrite)
        with atomic_write(out / SKIPPED, GO_ON) as partial:
            lines = "".join(f"{one.line()}\n" for one in images.skipped)
            partial.write_text(lines, encoding="utf-8", errors="backslashreplace")
        order = np.random.default_rng([plan.seed, 11]).permutation(len(images))
        written = 0
        hidden = not progress or len(images) <= BAR_FROM
        with Progress(console=Console(stderr=True), transient=True, disable=hidden) as bar:
            task = bar.add_task(f"writing {out.name}", total=plan.shards)
            for number in range(plan.shards):
                path = out / shard_name(number)
                if not path.exists():
                    rows = order[number * plan.per_shard : (number + 1) * plan.per_shard]
                    _write(path, rows, images, prior)
                    written += 1
                bar.advance(task)
        if (out / PLAN).exists():
            os.replace(out / PLAN, out / INDEX_FILE)
    return written


def _settle(plan: ShardIndex, out: Path, overwrite: bool) -> None:
    """The folder holds this plan, and perhaps shards of it; those of another plan are an error, or deleted if asked."""
    noted = [path for path in (out / INDEX_FILE, out / PLAN) if path.exists()]
    if noted and not overwrite:
        found = parse_index(noted[0].read_text(), str(noted[0]))
        if found == plan:
            return
        differing = [n for n, v in vars(plan).items() if getattr(found, n) != v]
        raise ValueError(
            f"{out} has shards of another plan ({', '.join(differing)} differ): replace them with --overwrite, "
            "or choose another --out"
        )
    ours = [*out.glob("shard-*.tar"), *noted, out / SKIPPED]
    others = [item for item in out.iterdir() if item not in ours and not item.name.startswith(".")]
    if not noted and (others or len(ours) > 1):
        raise ValueError(f"{out} is no folder of shards (no {INDEX_FILE}), and not empty: choose another --out")
    for path in sorted(ours, key=lambda path: path in noted):  # what says that they are ours goes last
        path.unlink(missing_ok=True)
    with atomic_write(out / PLAN, GO_ON) as partial:
        partial.write_text(plan.text())


def _write(path: Path, rows: np.ndarray, images: ImageSet, prior: np.ndarray | None) -> None:
    with atomic_write(path, GO_ON) as partial, tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
        for row in rows.tolist():
            key = f"{row:09d}"
            ending, data = _image(images, row)
            _add(tar, key + ending, data)
            if images.targets[row] >= 0:
                _add(tar, f"{key}.cls", str(images.targets[row]).encode())
            if prior is not None:
                file = io.BytesIO()
                np.save(file, np.asarray(prior[row], dtype=np.float32))
                _add(tar, f"{key}.prior.npy", file.getvalue())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # no time and no owner: the same images give the same bytes
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _image(images: ImageSet, row: int) -> tuple[str, bytes]:
    """The ending and the bytes: of a file its own, of an array's image a PNG."""
    pixels = images.pixels
    if isinstance(pixels, DecodeOnRead):
        entry = pixels.files.entries[pixels.rows[row]]
        return PurePosixPath(entry.name).suffix.lower(), _bytes_of(pixels, row)
    array = np.asarray(pixels[row])
    file = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(file, "PNG")
    return ".png", file.getvalue()


def _bytes_of(pixels: DecodeOnRead, row: int) -> bytes:
    entry = pixels.files.entries[pixels.rows[row]]
    try:
        data = pixels.files.read(entry)
        pixels.files.check_unchanged(entry)
    except OSError as error:
        path = printable(str(pixels.files.root / entry.name))
        raise ChangedFile(f"{path} was an image when the data were checked and no longer is: {error}") from None
    return data


def _common_side(images: ImageSet) -> int | None:
    """The side of the images as they are, if all are squares of it. Headers are read up to the first that differs."""
    height, width = images.size
    if not isinstance(images.pixels, DecodeOnRead) or not images.pixels.form.resized:
        return height if height == width else None
    pixels = images.pixels
    sizes = (header_size(_bytes_of(pixels, row)) for row in range(len(images)))
    first = next(sizes)
    return first[0] if first[0] == first[1] and all(size == first for size in sizes) else None
