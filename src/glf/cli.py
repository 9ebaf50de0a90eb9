"""The command line: parses a config, runs its command, turns errors into one line and an exit code."""

import io
import os
import signal
import sys
from functools import partial
from typing import Annotated, Any, Union

import tyro
from rich.console import Console
from rich.text import Text

from glf.commands import COMMANDS, configured
from glf.config.help_groups import parse
from glf.files import printable
from glf.health.examine import UnhealthyRunError

INTERRUPTED = "interrupted; continue a run with --resume from its last checkpoint, a comparison with the same command"
PATH = """Self-supervised image representations: an aligning part plus a constraining part.

From a folder of photos to a better encoder:
  1. glf adapt --data photos/ --out runs/a     start from pretrained weights; glf pretrain starts from nothing
  2. glf evaluate runs/a                       how good it is, next to pixels and the encoder before
  3. glf report runs/a                         one HTML page about it
  4. glf export runs/a --format timm           load it elsewhere; also onnx and torchvision"""
OPTIONS = (tyro.conf.OmitArgPrefixes, tyro.conf.PositionalRequiredArgs)


class OutputConsole(Console):
    """The console of a command's output. rich would end the process with exit code 1 when the reader has ended."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def main(arguments: list[str] | None = None) -> None:
    """Run a command. A user's mistake ends in one line and exit code 2; GLF_DEBUG=1 shows the traceback."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name that is not text must not make a message fail
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            name, *rest = arguments
            config = parse_config(name, rest)
            command = COMMANDS[name]
            code = command.exit_code(command.run(config, OutputConsole()))
        finally:  # also after --help, which exits
            sys.stdout.flush()
    except KeyboardInterrupt as error:
        _fail(str(error) or INTERRUPTED, 128 + getattr(error, "signal", signal.SIGINT), every_rank=True)
    except UnhealthyRunError as error:
        _fail(str(error), 3, every_rank=True)
    except BrokenPipeError:  # the reader of our output has ended, like `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to flush at exit
        sys.exit(128 + getattr(signal, "SIGPIPE", 13))
    except (ValueError, LookupError, OSError) as error:
        if os.environ.get("GLF_DEBUG") or isinstance(error, KeyError | IndexError):  # the latter are our mistakes
            raise
        _fail(str(error), 2)
    except (MemoryError, RuntimeError) as error:
        if os.environ.get("GLF_DEBUG") or not _is_out_of_memory(error):
            raise
        _fail(
            "out of memory: a smaller --batch-size, --image-size or network, --checkpoint-activations or --accumulate",
            2,
        )
    if code:
        sys.exit(code)


def _open_closed_streams() -> None:
    """Let streams that are closed (``>&-``) lead nowhere: a file opened next would become the output of a child."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def parse_config(name: str, arguments: list[str]) -> Any:
    """Return the config of a command; anything but the name of a command is answered with the list of commands."""
    if name in COMMANDS:
        command = COMMANDS[name]
        read = partial(tyro.cli, prog=f"glf {name}", description=command.help, args=arguments, config=OPTIONS)
        return configured(command.config, parse(command.config, read))
    commands = [Annotated[c.config, tyro.conf.subcommand(c.name, description=c.summary)] for c in COMMANDS.values()]
    every_config: Any = Union[tuple(commands)]  # noqa: UP007
    return tyro.cli(every_config, prog="glf", description=PATH, args=[name, *arguments], config=OPTIONS)


def _is_out_of_memory(error: BaseException) -> bool:
    """Python's own error, that of a GPU (torch.OutOfMemoryError), or that of torch's allocator on a CPU."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _fail(message: str, code: int, every_rank: bool = False) -> None:
    """Print one line and exit. Of an error that every process of a run meets, only the first prints."""
    if every_rank:
        from glf.distributed import launched_rank  # torch: such an error comes from a run, which has imported it

        if launched_rank():
            sys.exit(code)
    text = Text.assemble(("glf:", "bold red"), " ", printable(message))
    Console(stderr=True).print(text, soft_wrap=True)
    sys.exit(code)
