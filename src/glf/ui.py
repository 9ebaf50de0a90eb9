"""What a user sees in the terminal: lines of text and progress bars."""

import time
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from glf.files import printable

PATIENCE = 3.0  # seconds of work without a word


def counted(number: int, noun: str) -> str:
    """A number with its noun, which gets an s unless there is one of it.

    >>> counted(1, "epoch"), counted(1200, "image")
    ('1 epoch', '1,200 images')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say(console: Console, *lines: str, style: str = "") -> None:
    """Print lines as they are: no markup, emoji or colours of rich's, no wrapping; control characters escaped."""
    console.print(Text("\n".join(printable(line) for line in lines), style=style), soft_wrap=True)


def as_text(text: str) -> Text:
    """Text for a table: no markup, control characters escaped; line breaks are kept."""
    return Text("\n".join(printable(line) for line in text.split("\n")))


def progress(*columns: ProgressColumn | str, console: Console | None = None, show: bool = True) -> Progress:
    """A progress bar that disappears when it is done; on stderr unless a console is given. Descriptions are no markup.

    Only on a terminal or in a notebook with ipywidgets: in a file it would be empty lines.
    """
    console = console or Console(stderr=True)
    show = show and (find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal)
    if not columns:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    for column in columns:
        if isinstance(column, TextColumn):
            column.markup = isinstance(column, TaskProgressColumn)  # whose text is only a number
    return Progress(*columns, console=console, transient=True, disable=not show)


class SlowWork:
    """Says on stderr what takes so long, at ever longer intervals; quick work says nothing."""

    def __init__(self, what: str, noun: str) -> None:
        self.what, self.noun, self.done = what, noun, 0
        self.began, self.patience = time.monotonic(), PATIENCE

    def advance(self, count: int = 1) -> None:
        self.done += count
        if time.monotonic() - self.began > self.patience:
            say(Console(stderr=True), f"{self.what}: {counted(self.done, self.noun)} so far")
            self.patience = max(1.0, 2 * self.patience)
