"""The bytes of a shard: from a file, from a server, or from the output of a program.

Whatever goes wrong is an OSError of one line. Silence is an error too: a server that no longer answers must not keep
a run alive.
"""

import atexit
import base64
import io
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlparse, urlunparse
from urllib.request import Request, url2pathname, urlopen

from rich.console import Console

from glf.files import open_regular, printable
from glf.ui import say

ATTEMPTS = 4  # to read something remote
PAUSE = 0.5  # seconds before the second attempt; doubled before each further one
SILENCE = 30.0  # seconds without a byte after which an attempt has failed
PROGRAMS = {"gs": ("gsutil", "cat", "{url}"), "s3": ("aws", "s3", "cp", "{url}", "-")}  # what fetches which scheme
_MAYBE_LATER = (408, 425, 429)  # answers below 500 that another attempt may change

_running: set[subprocess.Popen[bytes]] = set()


class Refused(OSError):  # noqa: N818 (named after what happened)
    """An answer that another attempt would not change: no such file, no permission."""


def is_command(url: str) -> bool:
    """Whether the URL is a command to execute. Parsed leniently: any case, leading control characters ignored."""
    return urlparse(url).scheme == "pipe"


def is_local(url: str) -> bool:
    """Whether it is a path, neither a URL nor a command."""
    return not is_command(url) and "://" not in url


def check_scheme(url: str) -> None:
    """Raise ValueError for a URL that cannot be fetched here; nothing is opened."""
    scheme = urlparse(url).scheme
    if is_local(url) or scheme in ("http", "https", "file", "pipe"):
        return
    if scheme not in PROGRAMS:
        known = ", ".join(f"{name}://" for name in ("http", "https", "file", *PROGRAMS))
        raise ValueError(
            f"{url}: {scheme}:// is not supported ({known} are); a command that writes the shard to its standard output"
            " is: --data 'pipe:COMMAND'"
        )
    if shutil.which(PROGRAMS[scheme][0]) is None:
        raise ValueError(f"{url}: {scheme}:// needs the program {PROGRAMS[scheme][0]}, which is not installed")


def open_url(url: str) -> io.BufferedIOBase:
    """Open a path, a URL or a command for reading from beginning to end."""
    check_scheme(url)
    scheme = urlparse(url).scheme
    if is_local(url):
        return open_regular(url)
    if scheme == "file":
        return open_regular(url2pathname(urlparse(url).path))
    if scheme in PROGRAMS:
        return io.BufferedReader(_Program([word.format(url=url) for word in PROGRAMS[scheme]]), 2**16)
    if is_command(url):
        return io.BufferedReader(_Program(url.partition(":")[2]), 2**16)
    return _open_http(url)


def _open_http(url: str) -> io.BufferedIOBase:
    parts, headers = urlparse(url), {"User-Agent": "glf"}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        url = urlunparse(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    try:
        response: io.BufferedIOBase = urlopen(Request(url, headers=headers), timeout=SILENCE)
    except HTTPError as error:
        error.close()
        kind = Refused if error.code < 500 and error.code not in _MAYBE_LATER else OSError
        raise kind(f"the server answered {error.code} {error.reason}") from None
    except URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else OSError(str(error.reason)) from None
    return response


class _Program(io.RawIOBase):
    """The output of a program. It is killed, with its children, when the reader has enough of it."""

    def __init__(self, command: str | list[str]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with this object)
        self.process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
            start_new_session=True,
        )
        if not _running:
            atexit.register(end_programs)
        _running.add(self.process)
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if sys.platform != "win32":  # where a pipe cannot be waited for
            with selectors.DefaultSelector() as selector:
                selector.register(self.output, selectors.EVENT_READ)
                if not selector.select(SILENCE):
                    raise TimeoutError
        data = os.read(self.output, len(buffer))
        if not data:
            self._check_success()
        buffer[: len(data)] = data
        return len(data)

    def _check_success(self) -> None:
        try:
            code = self.process.wait(SILENCE)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if code:
            self.errors.seek(0)
            lines = self.errors.read(2**16).decode(errors="replace").split("\n")
            said = next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")
            raise OSError(f"the program that fetches it exited with code {code}{said}")

    def close(self) -> None:
        if not self.closed:
            _end(self.process)
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.errors.close()
        super().close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    _running.discard(process)
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)  # all of a pipeline; its session is its own
    process.wait()


def end_programs() -> None:
    """End all programs that this process has started to fetch shards."""
    for process in list(_running):
        _end(process)


def forget_programs() -> None:
    """Of a forked process: the programs of its parent are not its own."""
    _running.clear()


def reason(error: Exception) -> str:
    """Return in one line why something could not be fetched."""
    if isinstance(error, TimeoutError) and not error.strerror:
        return f"nothing came for {SILENCE:g} seconds"
    return printable(error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or repr(error)


def wait_for_retry(url: str, error: Exception, attempt: int) -> bool:
    """After a failed attempt, say so, pause and return True; return False if there is no point in another one."""
    if attempt == ATTEMPTS or is_local(url) or isinstance(error, Refused | ValueError):
        return False
    say(Console(stderr=True), f"{url}: {reason(error)}; attempt {attempt + 1} of {ATTEMPTS} follows")
    time.sleep(PAUSE * 2 ** (attempt - 1))
    return True


def read_url(url: str, most: int) -> bytes:
    """Return a small file, after retries if it is remote; ValueError if it cannot be read or has more bytes."""
    attempt = 0
    while True:
        attempt += 1
        try:
            with open_url(url) as stream:
                data = stream.read(most + 1)
            break
        except Exception as error:
            if not wait_for_retry(url, error, attempt):
                attempts = f" ({attempt} attempts)" if attempt > 1 else ""
                raise ValueError(f"cannot read {printable(url)}{attempts}: {reason(error)}") from None
    if len(data) > most:
        raise ValueError(f"{printable(url)} has more than {most:,} bytes: give another file")
    return data
