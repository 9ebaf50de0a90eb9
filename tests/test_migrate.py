"""scripts/migrate.py makes files of schema 1 readable."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from glf.comparison.runs import evaluated_result, run_key
from glf.config.base import from_dict
from glf.config.evaluation import EvaluateConfig
from glf.result import load_json, read_result
from glf.rundir import read_config

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import migrate

CONFIG = {
    "data": "few.npz", "method": "swav", "seed": 0, "choose": False, "limit": 100, "views": "gentle", "masks": None,
    "momentum": [0.9, 1.0], "stop_when_sick": False, "options": {"momentum": 0.5},
    "adc": {"nu": 0.5, "concentration": 1.0},
}  # fmt: skip
EVALUATION = {
    "run": "runs/a", "limit": 50, "beside": ["timm:resnet18"], "probe_rates": [0.01, 0.1], "strengths": [1.0],
    "finetune": {"finetune_rows": "labels.json"},
}  # fmt: skip
PROTOCOLS = {
    "knn5": "5-nn (Euclidean, majority)",
    "knn": "kNN (cosine, k 20, temperature 0.07)",
    "linear": "linear probe (SGD, 500 epochs)",
    "proved_slack": "  right less left",
}
RESULT = {
    "schema": 1,
    "kind": "pretrain",
    "config": CONFIG,
    "objective": {"maps": []},
    "training": {"waiting": 0.01},
    "command": "glf pretrain --no-choose --limit 100 --views=gentle --concentration 1.0 --out 'a b'",
    "evaluation": {
        "config": EVALUATION,
        "protocols": PROTOCOLS,
        "rows": {"trained": {"knn5": 0.5}},
        "command": "glf evaluate runs/a --limit 50 --beside timm:resnet18",
    },
}
COMPARISON = {
    "schema": 1,
    "kind": "compare",
    "settings": {"limit": 100},
    "variants": {"none": {}, "warm": {"momentum": [0.9, 1.0], "concentration": 1.0}},
    "runs": [{"key": "old", "reference": "old", "place": "run", "protocols": PROTOCOLS, "command": RESULT["command"]}],
    "judged": {"few.npz": {"protocols": PROTOCOLS, "split": "test"}},
    "command": "glf compare --methods simclr --settings limit 100 views limit --judging limit 50 --seeds 1",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A comparison with one run, as an earlier version has written it."""
    run = tmp_path / "run"
    (run / "artifacts").mkdir(parents=True)
    files: dict[Path, Any] = {
        run / "config.json": CONFIG,
        run / "result.json": RESULT,
        run / "artifacts" / "report.json": {"schema": 1, "columns": {}},
        tmp_path / "compare.json": COMPARISON,
    }
    for path, content in files.items():
        path.write_text(json.dumps(content, indent=1) + "\n")
    (run / "metrics.jsonl").write_text('{"step": 1, "waiting": 0.01}\n{"step": 2, "wai')
    for path in migrate.files(tmp_path):
        assert migrate.migrate(path), path
    return tmp_path


def test_a_migrated_run_is_read_with_its_values(folder: Path) -> None:
    run = folder / "run"
    config = read_config(run)
    assert (config.augment, config.max_images, config.auto, config.stop_on_problem) == ("gentle", 100, False, False)
    assert (config.ema_momentum, config.options, config.adc.nu) == ((0.9, 1.0), {"momentum": 0.5}, 0.5)
    content = read_result(run)
    assert content["training"] == {"data_wait": 0.01}
    assert content["objective"] == {"transforms": []}
    assert content["command"] == "glf pretrain --no-auto --max-images 100 --augment=gentle --out 'a b'"
    evaluation = from_dict(EvaluateConfig, content["evaluation"]["config"])
    assert (evaluation.max_images, evaluation.compare_with) == (50, ("timm:resnet18",))
    assert (evaluation.probe_lrs, evaluation.logistic_c) == ((0.01, 0.1), (1.0,))
    assert evaluation.finetune.finetune_indices == Path("labels.json")
    assert evaluated_result(run, evaluation) == content
    assert content["evaluation"]["command"] == "glf evaluate runs/a --max-images 50 --compare-with timm:resnet18"
    assert content["evaluation"]["protocols"] == {
        "knn5": "k-NN (k = 5, Euclidean, majority vote)",
        "knn": "k-NN (k = 20, cosine, temperature 0.07)",
        "linear": "linear probe (SGD, 500 epochs)",
        "proved_slack": "  right side - left side, proved form",
    }
    assert (run / "metrics.jsonl").read_text() == '{"step": 1, "data_wait": 0.01}\n{"step": 2, "wai'
    assert load_json(run / "artifacts" / "report.json") == {"schema": 2, "columns": {}}


def test_a_migrated_comparison_has_the_keys_of_its_runs(folder: Path) -> None:
    content = load_json(folder / "compare.json")
    assert content["settings"] == {"max_images": 100}
    assert content["variants"] == {"none": {}, "warm": {"ema_momentum": [0.9, 1.0]}}
    assert content["evaluated"]["few.npz"]["split"] == "test"
    settings = "max_images 100 augment limit"  # the last word is a value
    assert content["command"] == (
        f"glf compare --methods simclr --settings {settings} --evaluation max_images 50 --seeds 1"
    )
    (run,) = content["runs"]
    evaluation = from_dict(EvaluateConfig, read_result(folder / "run")["evaluation"]["config"])
    assert (run["path"], run["key"]) == ("run", run_key(read_config(folder / "run"), evaluation))
    assert run["reference"] != "old"


def test_migrating_again_changes_nothing(folder: Path) -> None:
    assert not any(migrate.migrate(path) for path in migrate.files(folder))


@pytest.mark.parametrize("change", [{"masks": "masks/"}, {"adc": {"concentration": 2.0}}])
def test_runs_with_removed_options_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **change}))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="this option no longer exists: train the run again"):
        migrate.migrate(path)
    assert path.read_bytes() == before
