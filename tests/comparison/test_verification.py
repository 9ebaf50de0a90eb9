"""glf verify confirms an untouched run and rejects a changed one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from glf.cli import main
from glf.comparison.verification import verify
from glf.config.evaluation import EvaluateConfig, VerifyConfig
from glf.evaluation.suite import evaluate


@pytest.fixture
def run(small_run: Callable[..., Path], few_images: str, console: Console) -> Path:
    found = small_run(data=few_images, max_images=None, image_size=16, batch_size=32)
    evaluate(EvaluateConfig(run=found, probe_epochs=20, references=False), console)
    return found


def test_an_untouched_run_is_confirmed(run: Path, console: Console) -> None:
    stored = (run / "result.json").read_bytes()
    assert verify(VerifyConfig(result=run / "result.json"), console)
    assert (run / "result.json").read_bytes() == stored  # verify changes nothing
    assert "20 epochs" in console.file.getvalue()  # type: ignore[attr-defined]


def test_changed_weights_are_detected(run: Path, console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "backbone.safetensors"
    generator = torch.Generator().manual_seed(0)
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        about = file.metadata()
    noisy = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator) if value.ndim == 4 else value
        for name, value in load_file(path).items()
    }
    save_file(noisy, path, about)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run)])
    assert ended.value.code == 1
    assert "different" in capsys.readouterr().out


def test_a_run_without_an_evaluation_is_an_error(run: Path, console: Console) -> None:
    content = json.loads((run / "result.json").read_text())
    del content["evaluation"]
    (run / "result.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="has not been evaluated: run `glf evaluate"):
        verify(VerifyConfig(result=run), console)
    with pytest.raises(FileNotFoundError, match=r"no result\.json"):
        verify(VerifyConfig(result=run / "nowhere"), console)
