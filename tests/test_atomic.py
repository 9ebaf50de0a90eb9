"""Files that are whole or absent, and work that one process does at a time."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from glf.atomic import alone, whole

HOLD = """
import sys, time
from pathlib import Path
from glf.atomic import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with whole(path) as partial:
        partial.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"

    def fail() -> None:
        with whole(path) as partial:
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
    with pytest.raises(BlockingIOError), alone(path, stopped=lambda: True):
        pass
    entered: list[float] = []

    def wait() -> None:
        with alone(path):
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
