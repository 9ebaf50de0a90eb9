"""The run's directory: made once, refused when taken, cleared or resumed only on request."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path

from glf import checkpoint, result
from glf.config.base import from_dict, to_dict
from glf.config.training import PretrainConfig, ResolvedPretrainConfig, resolved
from glf.data.images import Skipped
from glf.data.shards.read import is_command
from glf.distributed import launched_rank
from glf.files import exclusive_lock, lock_owner, lock_path, remove_leftovers

CONFIG = "config.json"
LAST = Path("checkpoints") / "last.ckpt"
SKIPPED = "skipped.txt"
RUN = "run"  # what the lock is called after
# What a resumed run may set anew: none of it changes what is learnt.
RESUMABLE_FIELDS = {
    "out", "resume", "overwrite", "dry_run", "device", "workers", "store", "root", "download", "keep", "save_every",
    "compile", "stop_on_problem", "save_minutes", "devices", "nodes", "strategy", "auto",
}  # fmt: skip
_OF_THE_COMMAND = {
    "out",
    "resume",
    "overwrite",
    "dry_run",
    "stop_on_problem",
}  # say what this command does, not how the run is set up


def default_out(config: PretrainConfig) -> Path:
    """runs/<method>-<data>-<seed>"""
    data = Path(config.data).stem or "data"
    return Path("runs") / f"{config.method.replace('+', '-')}-{data}-{config.seed}"


def resolve_directory(config: PretrainConfig) -> PretrainConfig:
    """Which directory, and which configuration: the given one, or on resume the one that the run began with."""
    out = config.out or default_out(config)
    config = replace(config, out=out)
    if config.resume and config.overwrite:
        raise ValueError("--resume goes on with a run and --overwrite deletes it: choose one")
    if config.dry_run:
        return config
    if not launched_rank() and _lock(out).exists():
        with _alone(out):  # or it is said at once that somebody else is there
            pass
    if config.resume:
        return _resumed(config, out)
    if launched_rank():  # the first process chooses the directory and makes it; the others find it made
        return config
    if _exists(out) and not config.overwrite:
        raise ValueError(f"{out} exists already: go on with --resume, replace it with --overwrite, or choose --out")
    if _exists(out) and not (out / CONFIG).is_file():
        raise ValueError(
            f"{out} is not the directory of a run (no {CONFIG}): it is not overwritten; choose another --out"
        )
    return config


@contextmanager
def create(config: PretrainConfig) -> Iterator[Path | None]:
    """The directory on the disk, and nobody else's as long as the block lasts; None for a dry run.

    Called when nothing else can be wrong any more; --overwrite deletes here.
    """
    out = config.out
    assert out is not None, "settle() chooses one"
    if config.dry_run or launched_rank():  # the first process holds it for all
        yield None if config.dry_run else out
        return
    with _alone(out):
        if config.resume:
            remove_leftovers(out)
            remove_leftovers((out / LAST).parent)
        else:
            if _exists(out) and not config.overwrite:
                raise ValueError(f"{out} was made by another run in the meantime: choose another --out")
            _clear(out)
            write(out / CONFIG, config)
        yield out


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Nobody else trains into this directory. A killed run does not count, and neither do its workers, soon to end."""

    def is_held() -> bool:
        found = lock_owner(out / RUN)
        return found is None or found.may_live

    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(out / RUN, stopped=is_held))
        except BlockingIOError:
            found = lock_owner(out / RUN)
            who = f": process {found.process} on {found.machine}" if found else ""
            raise BlockingIOError(
                f"another run is writing to {out}{who}; wait until it has ended, or choose another --out"
            ) from None
        yield


def _lock(out: Path) -> Path:
    return lock_path(out / RUN)


def _exists(out: Path) -> bool:
    return out.exists() and (not out.is_dir() or any(item != _lock(out) for item in out.iterdir()))


def _clear(out: Path) -> None:
    """Deletes what is in the directory; the configuration last, without which it is no longer known as a run's."""
    out.mkdir(parents=True, exist_ok=True)
    for item in sorted(out.iterdir(), key=lambda item: item.name == CONFIG):
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        elif item != _lock(out):
            item.unlink()


def saved_config(out: Path) -> ResolvedPretrainConfig:
    """The configuration that a run was started with."""
    path = out / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"no {CONFIG} in {out}: it is not the directory of a run (glf pretrain makes one)")
    try:
        return resolved(from_dict(PretrainConfig, json.loads(path.read_text())))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def note_skipped(out: Path, skipped: Iterable[Skipped], keep: bool = False) -> None:
    """skipped.txt: a line for each file that is no part of the data, with a tab before the reason.

    With ``keep``, lines that are there stay: what a stream has passed over is not looked at again before a run goes on.
    """
    if not launched_rank():
        lines = _skipped_lines(out) if keep else []
        lines += [line for line in (one.line() for one in skipped) if line not in lines]
        result.write(out / SKIPPED, "".join(f"{line}\n" for line in lines))


def skipped_count(out: Path) -> int:
    """How many files the run has passed over until now."""
    return len(_skipped_lines(out))


def _skipped_lines(out: Path) -> list[str]:
    path = out / SKIPPED
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def write(path: Path, config: PretrainConfig) -> None:
    result.write(path, json.dumps(to_dict(config), indent=1) + "\n")


def _resumed(config: PretrainConfig, out: Path) -> ResolvedPretrainConfig:
    """The saved configuration; a setting given anew must be the saved one, or one that changes nothing learnt."""
    saved = saved_config(out)
    default = PretrainConfig()
    for field in fields(PretrainConfig):
        given, kept = getattr(config, field.name), getattr(saved, field.name)
        if field.name not in RESUMABLE_FIELDS and given not in (kept, getattr(default, field.name)):
            raise ValueError(f"{field.name} was {kept!r} when {out} was started; it cannot become {given!r} on resume")
    if is_command(saved.data) and config.data != saved.data:
        raise ValueError(f"{out} reads what a command prints: give --data {saved.data!r} again to have it run")
    if not (out / LAST).exists():
        raise ValueError(
            f"{out} has no checkpoint yet (the first comes after some minutes or an epoch): start anew with --overwrite"
        )
    checkpoint.load(out / LAST)  # another version's or a broken file is refused before anything else happens
    given = {name: getattr(config, name) for name in RESUMABLE_FIELDS}
    # What was not given anew stays as it was: a run that decodes its files does not begin to pack them.
    anew = {n: v for n, v in given.items() if n in _OF_THE_COMMAND or v != getattr(default, n)}
    return replace(saved, **anew)
