"""Atomic writes and exclusive locks."""

import errno
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from glf.files import (
    LockOwner,
    atomic_write,
    exclusive_lock,
    lock_owner,
    lock_path,
    open_regular,
    partial_path,
    read_regular,
    remove_leftovers,
)

HOLD = """
import sys, time
from pathlib import Path
from glf.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with atomic_write(path) as partial:
        partial.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"

    def fail() -> None:
        with atomic_write(path) as partial:
            partial.write_text("other")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "half"
    assert list(path.parent.iterdir()) == [path]


def test_who_is_killed_leaves_the_work_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "work"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BlockingIOError), exclusive_lock(path, stopped=lambda: True):
        pass
    entered: list[float] = []

    def wait() -> None:
        with exclusive_lock(path):
            entered.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)
    assert not entered
    killed = time.monotonic()
    holder.kill()
    holder.communicate()
    waiting.join(30)
    assert entered
    assert entered[0] > killed


def test_the_lock_says_who_has_it_and_goes_with_the_work(tmp_path: Path) -> None:
    path = tmp_path / "work"
    assert lock_owner(path) is None
    with exclusive_lock(path):
        assert lock_owner(path) == LockOwner(os.getpid(), platform.node())
    assert list(tmp_path.iterdir()) == []
    lock_path(path).write_text("left by a kill")
    assert lock_owner(path) is None
    with exclusive_lock(path, stopped=lambda: True):  # without the lock, the file says nothing
        assert lock_owner(path) == LockOwner(os.getpid(), platform.node())


def test_of_many_at_once_one_works_at_a_time(tmp_path: Path) -> None:
    """The file is made and removed all the time, and nobody holds the lock of one that is gone."""
    inside, most, rounds = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, rounds
        for _ in range(5):
            with exclusive_lock(tmp_path / "work"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1
                rounds += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, rounds) == (1, 20)


def test_a_disk_without_locks_is_worked_on_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    entered = False
    with exclusive_lock(tmp_path / "work", stopped=lambda: True):
        entered = True
    assert entered


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    half, mine = partial_path(tmp_path / "last.ckpt", int(ended.stdout)), partial_path(tmp_path / "last.ckpt")
    others = [tmp_path / name for name in (".hidden", "last.ckpt", "a.1", f".{10**30}", ".backup.2019", ".x.999999999")]
    for path in (half, mine, *others):
        path.touch()
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == {mine, *others}


def test_a_long_wait_for_a_lock_says_once_who_holds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, release = tmp_path / "[red]work", threading.Event()

    def hold() -> None:
        with exclusive_lock(path):
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    while lock_owner(path) is None:
        time.sleep(0.01)
    threading.Timer(3, release.set).start()
    with exclusive_lock(path):
        pass
    holder.join()
    said = f"waiting for {lock_path(path)}, held by process {os.getpid()} on {platform.node()}\n"
    assert capsys.readouterr().err == said


def test_a_short_wait_for_a_lock_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    with (
        exclusive_lock(tmp_path / "work"),
        pytest.raises(BlockingIOError),
        exclusive_lock(tmp_path / "work", stopped=lambda: time.monotonic() - begun > 1),
    ):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a pipe"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if "pipe" in kind:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("pipe")
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        open_regular(path)


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(ValueError, match=r"/a has more than 4 bytes"):
        read_regular(tmp_path / "a", 4)
