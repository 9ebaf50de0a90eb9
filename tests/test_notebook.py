"""The notebook runs from beginning to end, is kept without output, and its badge leads where the project is."""

import base64
import io
import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
FIELDS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_valid_and_has_no_output(path: Path) -> None:
    """Version 4.5 of the format, by its fields: outputs would change with every run and hide what did."""
    content = json.loads(path.read_text())
    assert content.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    names = [cell["id"] for cell in content["cells"]]
    assert len(set(names)) == len(names) >= 10
    for cell in content["cells"]:
        assert cell.keys() == FIELDS[cell["cell_type"]]
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["metadata"] == {}
        assert cell["source"]
        assert all(isinstance(line, str) for line in cell["source"])
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_badge_opens_the_address_of_the_project(path: Path) -> None:
    """Once pyproject.toml names a repository on GitHub, the badge has to open the notebook there."""
    text = "".join(json.loads(path.read_text())["cells"][0]["source"])
    (target,) = re.findall(r"\(https://colab\.research\.google\.com/assets/colab-badge\.svg\)\]\((.*?)\)", text)
    address = re.search(r"https://github\.com/[\w.-]+/[\w.-]+", (ROOT / "pyproject.toml").read_text())
    if address is None:
        assert target == "https://colab.research.google.com/#upload=true"
        assert "no public address" in text
    else:
        where = address[0].replace("https://github.com/", "https://colab.research.google.com/github/")
        assert target == f"{where}/blob/main/examples/{path.name}"
        assert "no public address" not in text


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nbclient") is None or find_spec("ipykernel") is None, reason="pip install 'glf[slow]'")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", str(os.cpu_count()))
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    client = NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()  # raises for a cell that fails
    pictures = [image for cell in notebook.cells for image in _pictures(cell)]
    assert len(pictures) >= 3
    for image in pictures:
        assert min(image.size) >= 64
        assert np.asarray(image.convert("L")).std() > 5, "a picture shows something"
    assert any("srcdoc=" in page and "k-NN" in page for page in _data(notebook, "text/html"))
    said = "".join(_data(notebook, "text"))
    gaps = re.search(r"largest difference to the table: ([\d.e-]+)", said)
    assert gaps is not None
    assert float(gaps[1]) < 1e-3
    assert re.search(r"kept: (frozen|adapted|average)", said)


def _pictures(cell: Any) -> list[Image.Image]:
    shown = [output["data"]["image/png"] for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    return [Image.open(io.BytesIO(base64.b64decode(one))) for one in shown]


def _data(notebook: Any, kind: str) -> list[str]:
    """What the cells showed of one kind; "text" is what they printed."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [
        output["text"] if kind == "text" else output["data"][kind]
        for output in outputs
        if (kind == "text" and "text" in output) or kind in output.get("data", {})
    ]
