"""Progress bars: where they can be drawn, and nowhere else."""

import io

import pytest
from rich.console import Console

from glf import ui


@pytest.mark.parametrize(
    ("place", "widgets", "shown"),
    [
        ({"force_terminal": True}, False, True),
        ({"force_jupyter": True}, True, True),
        ({"force_jupyter": True}, False, False),  # rich would warn of every bar instead
        ({}, True, False),
    ],
)
def test_a_progress_bar_is_shown_where_it_can_be_drawn(place, widgets, shown, monkeypatch):
    monkeypatch.setattr("glf.ui.find_spec", lambda name: object() if widgets else None)
    console = Console(file=io.StringIO(), **place)
    assert ui.progress(console=console).disable is not shown
    assert ui.progress(console=console, show=False).disable
