"""result.json: merged, versioned, readable or refused."""

from pathlib import Path

import pytest
import torch

from glf import result


def test_sections_are_merged_and_provenance_is_complete(tmp_path: Path) -> None:
    result.update(tmp_path, a=1, **result.provenance())
    content = result.update(tmp_path, b={"c": 2})
    assert content == result.read(tmp_path)
    assert (content["a"], content["b"]) == (1, {"c": 2})
    assert content["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert content["machine"]["cores"] >= 1
    assert [p.name for p in tmp_path.iterdir()] == [result.FILE]


def test_the_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/glf", "pretrain", "--data", "my photos"])
    assert result.command() == "glf pretrain --data 'my photos'"


@pytest.mark.parametrize(("text", "message"), [("{", "no JSON"), ('{"schema": 7}', "schema 7")])
def test_bad_results_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / result.FILE).write_text(text)
    with pytest.raises(ValueError, match=message):
        result.read(tmp_path)


def test_a_directory_without_a_result(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="directory of a run"):
        result.read(tmp_path)
