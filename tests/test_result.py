"""result.json: sections are merged; invalid files and other schemas are refused."""

from pathlib import Path

import pytest
import torch

from glf.result import command_line, provenance, read_result, update_result
from glf.runfiles import RESULT


def test_sections_are_merged_and_provenance_is_complete(tmp_path: Path) -> None:
    update_result(tmp_path, a=1, **provenance())
    content = update_result(tmp_path, b={"c": 2})
    assert content == read_result(tmp_path)
    assert (content["a"], content["b"]) == (1, {"c": 2})
    assert content["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert content["machine"]["cores"] >= 1
    assert [p.name for p in tmp_path.iterdir()] == [RESULT]


def test_the_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/glf", "pretrain", "--data", "my photos"])
    assert command_line() == "glf pretrain --data 'my photos'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ('{"schema": 7}', "schema 7, but this version of glf reads schema 2: create it again"),
        ("[]", "schema None"),
        (
            '{"schema": 1}',
            r"result\.json was written by an earlier version of glf: `python scripts/migrate\.py .*json` .*rewrites it",
        ),
    ],
)
def test_bad_results_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / RESULT).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_result(tmp_path)


def test_a_directory_without_a_result(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is it a run directory"):
        read_result(tmp_path)
