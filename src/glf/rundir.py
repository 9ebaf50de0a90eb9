"""The run directory: its files, its lock, and what --resume and --overwrite do to it."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path

from glf.checkpoint import load_checkpoint
from glf.config.base import data_name, from_dict, to_dict
from glf.config.training import AdaptConfig, PretrainConfig, ResolvedPretrainConfig, config_type, with_defaults
from glf.data.shards.fetch import is_command
from glf.data.source import Skipped
from glf.distributed import launched_rank
from glf.files import exclusive_lock, is_page, is_partial, lock_owner, lock_path, remove_leftovers
from glf.result import write_file
from glf.runfiles import CHECKPOINTS, CONFIG, LAST, LOCK, PAGE, SKIPPED, WRITTEN, WRITTEN_BELOW

SCHEMA = 2
# Options that may change on --resume: they say how a run is carried out, not what it learns.
RESUMABLE_FIELDS = {
    "out", "resume", "overwrite", "dry_run", "device", "workers", "store", "root", "download", "keep", "save_every",
    "compile", "stop_on_problem", "save_minutes", "devices", "nodes", "strategy", "auto", "logger",
    "checkpoint_activations",
}  # fmt: skip
# Keys of every config.json of ours. Other libraries have a method, a backbone and a seed in theirs.
_OURS = {"schema", "method", "data", "backbone", "seed", "val_images", "projector_norm", "ema_momentum", "save_minutes"}
_COMMAND_FIELDS = {"out", "resume", "overwrite", "dry_run", "stop_on_problem"}  # of this command, not of the run


class Stopped(KeyboardInterrupt):
    """A signal has stopped a run, or a comparison; the message says how to resume it."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


def resolve_directory(config: PretrainConfig) -> PretrainConfig:
    """Choose the run directory and check that it may be used; on --resume return the saved config."""
    data = data_name(config.data)
    out = config.out or Path("runs") / f"{config.method.replace('+', '-')}-{data}-{config.seed}"
    config = replace(config, out=out)
    if config.resume and config.overwrite:
        raise ValueError("--resume continues a run and --overwrite deletes it: choose one")
    if launched_rank() == 0 and not config.dry_run and lock_path(out / LOCK).exists():
        with _lock(out):  # fails at once if another run holds it
            pass
    if config.resume:
        return _resumed(config, out)
    if config.dry_run:
        return config
    if launched_rank():  # the first process creates the directory; the others find it
        return config
    check_free(out)
    if _exists(out) and not config.overwrite:
        raise ValueError(f"{out} already exists: continue it with --resume, replace it with --overwrite, or set --out")
    return config


def check_free(out: Path) -> None:
    """Refuse what is neither a run nor empty: a file, a device, or a folder with the user's files."""
    if _exists(out) and not is_run(out):
        raise ValueError(f"{out} is not a run directory and is not overwritten: choose another --out")


@contextmanager
def create(config: ResolvedPretrainConfig) -> Iterator[Path | None]:
    """Create the run directory, or clear it with --overwrite, and hold its lock; yields None for a dry run."""
    out = config.out
    assert out is not None, "resolve_directory() sets it"
    if config.dry_run or launched_rank():  # the first process holds the lock for all
        yield None if config.dry_run else out
        return
    with _lock(out):
        if config.resume:
            remove_leftovers(out)
            remove_leftovers(out / CHECKPOINTS)
        else:
            if _exists(out) and not config.overwrite:
                raise ValueError(f"{out} was created by another run in the meantime: choose another --out")
            _clear(out)
            write_config(out, config)
        yield out


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(out / LOCK, stopped=lambda: True))
        except BlockingIOError:
            owner = lock_owner(out / LOCK)
            who = f": process {owner.process} on {owner.machine}" if owner else ""
            raise BlockingIOError(
                f"another run is writing to {out}{who}; wait until it has ended, or choose another --out"
            ) from None
        yield


def _exists(out: Path) -> bool:
    """Whether there is anything; what a run that was killed at once has left does not count."""
    if not out.is_dir():
        return out.exists()
    return any(item != lock_path(out / LOCK) and not is_partial(item) for item in out.iterdir())


def is_run(out: Path) -> bool:
    """Whether a directory is a run: its config.json has the keys of ours. Other tools write a config.json too."""
    try:
        values = json.loads((out / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.keys() >= _OURS


def _clear(out: Path) -> None:
    """Delete what glf wrote, config.json last: without it the directory is no longer recognised as a run."""
    out.mkdir(parents=True, exist_ok=True)
    remove_leftovers(out)
    for folder, patterns in WRITTEN_BELOW.items():
        _clear_folder(out / folder, patterns)
    for name in (*WRITTEN, CONFIG):
        item = out / name
        if item.is_symlink() or (item.is_file() and (name != PAGE or is_page(item))):
            item.unlink()


def _clear_folder(folder: Path, patterns: tuple[str, ...]) -> None:
    """Delete what glf wrote in a folder of a run; the folder too, unless there are files of the user's."""
    if folder.is_symlink():
        folder.unlink()  # not what it leads to
    if not folder.is_dir():
        return
    remove_leftovers(folder)
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        if path.is_file() or path.is_symlink():
            path.unlink()
    for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        with suppress(OSError):  # not empty
            inner.rmdir()
    with suppress(OSError):
        folder.rmdir()


def write_config(out: Path, config: ResolvedPretrainConfig) -> None:
    """Write config.json."""
    write_file(out / CONFIG, json.dumps({"schema": SCHEMA, **to_dict(config)}, indent=1) + "\n")


def read_config(out: Path) -> ResolvedPretrainConfig:
    """Read config.json."""
    path = out / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"no {CONFIG} in {out}: it is not a run directory (glf pretrain creates one)")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        schema = values.pop("schema", 1)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a saved config ({error}): train the run again") from error
    if schema != SCHEMA:
        raise ValueError(
            f"{path} was written by another version of glf (schema {schema}, this version reads {SCHEMA});"
            f" `python scripts/migrate.py {out}` in a clone of glf updates the run directory"
        )
    try:
        return with_defaults(from_dict(config_type(values), values))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _resumed(config: PretrainConfig, out: Path) -> ResolvedPretrainConfig:
    """Return the saved config; an option other than its default must be unchanged or in ``RESUMABLE_FIELDS``."""
    saved = read_config(out)
    if isinstance(saved, AdaptConfig) != isinstance(config, AdaptConfig):
        command = "adapt" if isinstance(saved, AdaptConfig) else "pretrain"
        raise ValueError(f"{out} is a run of glf {command}: continue it with glf {command} --resume --out {out}")
    default = type(config)()
    for field in fields(default):
        if field.name == "plugin":  # the content counts, not the path: plugins.check_recorded
            continue
        given, kept = getattr(config, field.name), getattr(saved, field.name)
        if field.name not in RESUMABLE_FIELDS and given not in (kept, getattr(default, field.name)):
            raise ValueError(f"{field.name} was {kept!r} when {out} was started; it cannot become {given!r} on resume")
    if _may_be_command(saved.data) and config.data != saved.data:
        raise ValueError(f"{out} may read the output of a command: repeat --data {saved.data!r} to run it again")
    if (out / LAST).exists():  # otherwise the run starts again with its saved config
        load_checkpoint(out / LAST)  # a broken file or another version's is refused before anything else happens
    given = {name: getattr(config, name) for name in RESUMABLE_FIELDS}
    changed = {n: v for n, v in given.items() if n in _COMMAND_FIELDS or v != getattr(default, n)}
    return replace(saved, **changed)


def _may_be_command(data: str) -> bool:
    """Whether webdataset might execute what a saved config names as its data: braces may expand to a command.

    >>> [_may_be_command(one) for one in ("pipe:ls", "{p,p}ipe:ls", "a::pipe:ls", "https://host/{0..9}.tar", "a.tar")]
    [True, True, True, False, False]
    """
    scheme, separator, rest = data.partition("://")
    plain = rest if separator and "{" not in scheme else data
    return is_command(data) or (("{" in data or "::" in data) and ":" in plain)


def note_skipped(out: Path, skipped: Iterable[Skipped], keep: bool = False) -> None:
    """Write skipped.txt: a line per skipped file, its name and the reason separated by a tab.

    ``keep`` keeps existing lines: a resumed run on shards does not read the earlier samples again.
    """
    if launched_rank() == 0:
        lines = _skipped_lines(out) if keep else []
        lines += [line for line in (one.line() for one in skipped) if line not in lines]
        write_file(out / SKIPPED, "".join(f"{line}\n" for line in lines))


def skipped_count(out: Path) -> int:
    """Number of files skipped so far."""
    return len(_skipped_lines(out))


def _skipped_lines(out: Path) -> list[str]:
    path = out / SKIPPED
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
