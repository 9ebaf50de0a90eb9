"""Write a data set as WebDataset shards. A killed command resumes where it stopped."""

import hashlib
import io
import os
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from glf.data.arrays import as_png
from glf.data.decode import header_size
from glf.data.decode_all import BAR_FROM
from glf.data.images import DecodeOnRead, ImageSet, statistics
from glf.data.shards.schema import INDEX_FILE, ShardIndex, ShardPrior, parse_index, shard_name
from glf.files import atomic_write, exclusive_lock, remove_leftovers
from glf.runfiles import SKIPPED

PLAN_FILE = "plan.json"  # name of shards.json until all shards are written
RETRY_ADVICE = "free some space there and run the same command again; complete shards are kept"


def plan_shards(
    images: ImageSet,
    *,
    split: str,
    per_shard: int,
    seed: int,
    prior: np.ndarray | None = None,
    prior_name: str = "",
) -> ShardIndex:
    """The index of the shards that ``write_shards`` will write; ``prior`` has one feature vector per image."""
    if per_shard < 1:
        raise ValueError(f"a shard needs at least one image, got {per_shard}")
    mean, std = statistics(images)
    stored_prior = None
    if prior is not None:
        digest = hashlib.blake2b(np.ascontiguousarray(prior).data, digest_size=8).hexdigest()
        stored_prior = ShardPrior(name=prior_name, width=prior.shape[1], digest=digest)
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
        prior=stored_prior,
    )


def write_shards(
    images: ImageSet,
    plan: ShardIndex,
    out: Path,
    *,
    prior: np.ndarray | None = None,
    overwrite: bool = False,
    show_progress: bool = True,
) -> int:
    """Write the shards that do not exist yet; return their number.

    The images are shuffled over all shards, because class folders would otherwise become shards of one class. Each
    shard is written atomically, so every shard left by a killed command is complete. shards.json is written last.
    """
    from glf.ui import progress  # imports rich, which `glf --help` should not wait for

    out.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(out / "shards"):
        _prepare_folder(plan, out, overwrite)
        remove_leftovers(out)
        with atomic_write(out / SKIPPED, RETRY_ADVICE) as partial:
            lines = "".join(f"{skipped.line()}\n" for skipped in images.skipped)
            partial.write_text(lines, encoding="utf-8", errors="backslashreplace")
        order = np.random.default_rng([plan.seed, 11]).permutation(len(images))
        written = 0
        with progress(show=show_progress and len(images) > BAR_FROM) as bar:
            task = bar.add_task(f"writing {out.name}", total=plan.shards)
            for number in range(plan.shards):
                path = out / shard_name(number)
                if not path.exists():
                    indices = order[number * plan.per_shard : (number + 1) * plan.per_shard]
                    _write_shard(path, indices, images, prior)
                    written += 1
                bar.advance(task)
        if (out / PLAN_FILE).exists():
            os.replace(out / PLAN_FILE, out / INDEX_FILE)
    return written


def find_indexes(out: Path) -> list[Path]:
    """The index of the shards in a folder, or their plan; ValueError if the folder cannot be used, before any work."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder: choose another --out")
    indexes = [path for path in (out / INDEX_FILE, out / PLAN_FILE) if path.exists()]
    items = out.iterdir() if out.exists() else ()
    if not indexes and any(not item.name.startswith(".") for item in items):
        raise ValueError(f"{out} is not empty and not a folder of shards (no {INDEX_FILE}): choose another --out")
    return indexes


def _prepare_folder(plan: ShardIndex, out: Path, overwrite: bool) -> None:
    """Make sure that the folder contains this plan and no shards of another one; delete those only on ``overwrite``.

    Only shards that the folder's index lists are deleted: others are the user's.
    """
    indexes = find_indexes(out)
    existing = [parse_index(path.read_text(), str(path)) for path in indexes]
    if existing and not overwrite:
        if existing[0] == plan:
            return
        differing = [name for name, value in vars(plan).items() if getattr(existing[0], name) != value]
        raise ValueError(
            f"{out} has shards with other settings ({', '.join(differing)} differ): replace them with --overwrite,"
            " or choose another --out"
        )
    listed = max((index.shards for index in existing), default=0)
    for path in (out / shard_name(number) for number in range(listed, plan.shards)):
        if path.exists():
            raise ValueError(f"{path} is not among the shards of {indexes[0]}: move it away, or choose another --out")
    for path in (*(out / shard_name(number) for number in range(listed)), out / SKIPPED, *indexes):
        path.unlink(missing_ok=True)  # the index last: it marks the folder as ours
    with atomic_write(out / PLAN_FILE, RETRY_ADVICE) as partial:
        partial.write_text(plan.text())


def _write_shard(path: Path, indices: np.ndarray, images: ImageSet, prior: np.ndarray | None) -> None:
    with atomic_write(path, RETRY_ADVICE) as partial, tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in indices.tolist():
            key = f"{index:09d}"
            ending, data = _encoded(images, index)
            _add(tar, key + ending, data)
            if images.targets[index] >= 0:
                _add(tar, f"{key}.cls", str(images.targets[index]).encode())
            if prior is not None:
                file = io.BytesIO()
                np.save(file, np.asarray(prior[index], dtype=np.float32))
                _add(tar, f"{key}.prior.npy", file.getvalue())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # without time and owner, so that the same images give the same bytes
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _encoded(images: ImageSet, index: int) -> tuple[str, bytes]:
    """Extension and bytes of an image: an image file as it is, an image of an array as PNG."""
    pixels = images.pixels
    if isinstance(pixels, DecodeOnRead):
        return PurePosixPath(pixels.name(index)).suffix.lower(), pixels.read(index)
    return ".png", as_png(pixels[index])


def _common_side(images: ImageSet) -> int | None:
    """The original side of the images if all are squares of one size. Reads headers up to the first that differs."""
    height, width = images.size
    if not isinstance(images.pixels, DecodeOnRead) or not images.pixels.form.resized:
        return height if height == width else None
    pixels = images.pixels
    sizes = (header_size(pixels.read(index)) for index in range(len(images)))
    first = next(sizes)
    return first[0] if first[0] == first[1] and all(size == first for size in sizes) else None
