"""glf push: the files of the timm format with a card for Hugging Face's hub, and their upload.

Everything is written and checked before the hub is contacted, by its own client and with its own login.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

import glf
from glf.config.inference import ExportConfig, PushConfig
from glf.exporting.loading_code import NotPlainError
from glf.exporting.model_card import HUB_CODE
from glf.exporting.write import Exported, write_export
from glf.runfiles import EXPORT
from glf.ui import say

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FOLDER = "hub"  # in the run's folder of exports
FILES = ("README.md", "config.json", "model.safetensors")


class Pushed(NamedTuple):
    """The folder that was written, and its page on the hub, unless it was a dry run."""

    folder: Path
    url: str | None


def push(config: PushConfig, console: Console | None = None) -> Pushed:
    """Write the folder, compare its features with the run's, and upload it."""
    console = console or Console()
    check_name(config.name)
    if not config.dry_run:
        check_token()
    done = _write(config)
    folder = done.file.parent
    say(
        console,
        f"written   {folder}: {', '.join(FILES)}",
        f"checked   its features differ by at most {done.difference:.1e} from those of {config.run}",
    )
    if config.license is None:
        say(console, "licence   none is given: --license says under which one others may use the weights")
    if config.dry_run:
        say(console, f"nothing was uploaded: read {done.card}, then repeat without --dry-run")
        return Pushed(folder, None)
    url = upload(config, folder)
    say(console, f"uploaded  {url}", "load it without glf:", "")
    say(console, *(f"    {line}".rstrip() for line in HUB_CODE.replace("NAME", config.name).split("\n")))
    return Pushed(folder, url)


def check_name(name: str) -> None:
    """Refuse a name that the hub would not take."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    wanted = "a name on the hub is USER/NAME, of letters, digits, '-', '_' and '.'"
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"{name!r} is no name of a repository: {wanted}") from error
    if name.count("/") != 1:
        raise ValueError(f"{name!r} names no user: {wanted}")


def check_token() -> None:
    """Refuse to upload without a login."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise ValueError("no token of Hugging Face's hub: run `hf auth login`, or set HF_TOKEN, or add --dry-run")


def _write(config: PushConfig) -> Exported:
    run = config.run if config.run.is_dir() else config.run.parent
    out = config.out or run / EXPORT / FOLDER
    if not out.is_dir() and (out.exists() or out.suffix):
        raise ValueError(f"--out {out} is no folder: choose a name without an ending")
    try:
        return write_export(ExportConfig(run=config.run, format="timm", out=out, license=config.license), config.name)
    except NotPlainError as error:
        export = f"glf export {config.run} --format safetensors"
        raise ValueError(
            f"{error.why}, and timm builds models of the hub by name: `{export}` writes it with the code that builds"
            f" it, and `hf upload {config.name} FOLDER` uploads that folder"
        ) from error


def upload(config: PushConfig, folder: Path) -> str:
    """Create the repository if there is none, upload the files in one commit, and return the address of the page."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(library_name="glf", library_version=glf.__version__)
    with _explained(config.name, folder):
        _create(api, config)
        files = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in FILES]
        api.create_commit(config.name, files, commit_message=f"Upload by glf {glf.__version__}")
    return f"{api.endpoint}/{config.name}"


def _create(api: "HfApi", config: PushConfig) -> None:
    """Create the repository. One that is there must be as private as was asked for."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(config.name, private=not config.public)
    except HfHubHTTPError as error:
        if error.response.status_code not in (401, 403, 409):
            raise
        try:  # a token for this repository alone may not create one, either
            found = api.model_info(config.name)
        except HfHubHTTPError:
            raise error from None
        if not found.private and not config.public:
            raise PermissionError(f"{config.name} exists and is public: add --public, or choose another name") from None


@contextmanager
def _explained(name: str, folder: Path) -> Iterator[None]:
    """One line for each thing that may go wrong, with what to do."""
    from huggingface_hub.errors import HfHubHTTPError

    kept = f"{folder} is whole, and the same command uploads it"
    try:
        yield
    except PermissionError:
        raise
    except Exception as error:  # also of whichever library the client speaks HTTP with
        answer = next((one for one in _causes(error) if isinstance(one, HfHubHTTPError)), None)
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        if answer is None and isinstance(error, ValueError):  # the card's header is checked before the upload
            raise ValueError(
                f"the hub refused the files for {name} ({' '.join(str(error).split())}); {kept}"
            ) from error
        if answer is None:
            raise OSError(
                f"the hub was not reached, or stopped answering ({why}): check the network; {kept}"
            ) from error
        code = answer.response.status_code
        if code == 401:
            raise PermissionError(f"the hub does not accept the token (401): run `hf auth login`; {kept}") from error
        if code in (403, 404):
            raise PermissionError(
                f"your token may not write to {name} ({code}): the name is someone else's, or the token is for reading"
                f" only; choose a name of your own, or make a token that may write; {kept}"
            ) from error
        why = (answer.server_message or why).strip().partition("\n")[0]
        raise OSError(f"the hub refused {name} ({code}: {why}); {kept}") from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__
