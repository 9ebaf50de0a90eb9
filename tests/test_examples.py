"""The examples run, are short, and keep their promise of few added lines."""

import re
import sys
from pathlib import Path

import pytest

import forked

# Tests of their own: tests/inference/test_ray.py, which is slow, and tests/test_plugin_runs.py.
ELSEWHERE = {"embed_with_ray", "own_terms"}
EXAMPLES = sorted(
    path for path in (Path(__file__).parent.parent / "examples").glob("*.py") if path.stem not in ELSEWHERE
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 80
    program = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    done = forked.run([sys.executable, "-c", program], timeout=600)
    assert done.returncode == 0, done.stderr
    values = [float(value) for value in re.findall(r"-?\d+\.\d+", done.stdout)]
    assert len(values) >= 8
    assert "nan" not in done.stdout


def test_adc_needs_at_most_five_lines_in_anybodys_loop() -> None:
    text = next(path for path in EXAMPLES if path.stem == "adc_with_lightly").read_text()
    assert 1 <= len(re.findall(r"# [1-5](?::|$)", text, flags=re.MULTILINE)) <= 5
