"""docs/adding_a_term.md as a newcomer follows it: its file, its commands, and its entries for the library."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

import forked
import reference
from glf.methods import METHODS, parse, register_method
from glf.objective import Method
from glf.types import Embeddings
from plugin_files import kept_tables

PAGE = (Path(__file__).parent.parent / "docs" / "adding_a_term.md").read_text()
BLOCKS = re.findall(r"```python\n# ([\w./]+)[^\n]*\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("glf ")]


def block(file: str) -> str:
    """What the page has for a file."""
    (code,) = (code for name, code in BLOCKS if name == file)
    return code


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "my_terms.py").write_text(block("my_terms.py"))
    return folder


def test_the_commands_of_the_page_run_in_order(project: Path) -> None:
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "GLF_CACHE": str(project / "cache")}
    code = f"import os; os.chdir({str(project)!r}); from glf.cli import main; main()"
    printed = []
    for command in COMMANDS:
        ended = forked.run([sys.executable, "-c", code, *shlex.split(command)[1:]], env=environment)
        assert ended.returncode == 0, (command, ended.stderr)
        printed.append(ended.stdout)
    assert [shlex.split(command)[1] for command in COMMANDS] == ["methods", "pretrain", "pretrain", "evaluate"]
    assert "50 huber: huber(z - z')" in printed[0]
    assert "+ 0.2 norm" in printed[1] or "+ 2 norm" in printed[1]
    assert "method    huber = 50 huber + 25 variance + 2 covariance" in printed[2]
    assert "huber" in printed[3]
    assert (project / "runs/huber/result.json").exists()


def test_the_entries_for_the_library_describe_the_method_of_the_page() -> None:
    """Its row in the table, and the loops that its loss is compared with, are those of the plug-in."""
    page: dict[str, object] = {}
    with kept_tables():
        exec(compile(block("my_terms.py"), "my_terms.py", "exec"), page)
        of_plugin = METHODS["huber"]
    row = eval(
        f"[{block('src/glf/methods/decorrelation.py')}]", {"Heads": type(of_plugin.heads), "Method": Method, **page}
    )
    assert [(one.options, one.heads, one.many_views) for one in row] == [
        (of_plugin.options, of_plugin.heads, of_plugin.many_views)
    ]
    loops = dict(vars(reference.methods))
    exec(compile(block("tests/reference/methods.py"), "methods.py", "exec"), loops)
    m = type("m", (), {name: staticmethod(value) for name, value in loops.items() if callable(value)})
    ((name, (loss, options)),) = eval(f"{{{block('tests/reference/losses.py')}}}", {"m": m}).items()
    fields = reference.draw_fields(batch=5, dim=3)
    with kept_tables():
        register_method(row[0])
        found = parse(name).build(**options)(Embeddings(z=fields["z"])).total
    torch.testing.assert_close(found, loss(fields), rtol=1e-12, atol=1e-12)
