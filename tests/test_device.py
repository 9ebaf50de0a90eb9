"""What is known about the machine."""

import os

import pytest

from glf.device import cores


def test_cores_are_those_granted_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def granted(_: int) -> set[int]:
        return {3, 5, 6}

    monkeypatch.setattr(os, "sched_getaffinity", granted, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert cores() == 5
