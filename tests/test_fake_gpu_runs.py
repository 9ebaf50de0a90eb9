"""Whole commands and measures on a fake GPU: results of the CPU, and lists of all places that wait for the device."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from rich.console import Console
from torch import Tensor

from fake_gpu import COPIES_BACK, CUDA, FakeGpu, Waits, same_on_gpu
from glf.adaptation.run import adapt
from glf.config.adc import AdcOptions
from glf.config.evaluation import EvaluateConfig
from glf.config.training import AdaptConfig, PretrainConfig
from glf.evaluation.classifiers import LogisticRegression, linear_probe
from glf.evaluation.suite import evaluate
from glf.measure import blocks, classes, geometry, knn
from glf.measure.duplicates import near_duplicates
from glf.measure.outlier_score import neighbour_entropy
from glf.train import trainer
from glf.train.module import Pretraining
from glf.train.run import pretrain
from reference import draw

# Every place that waits for the GPU, and why it has to. The tests fail at a place that is not listed, and if a listed
# one no longer waits. A step that is not logged waits nowhere.
LOGGED_STEP = {
    "train/callbacks.py:on_train_batch_end": "writes the metrics; the first one waits, the others find the GPU idle",
    "measure/batch.py:steps": "the doctor looks for values that are not finite",
}
BETWEEN_STEPS = {
    "measure/batch.py:steps": "the doctor looks again before a checkpoint is written",
    "train/monitor.py:weights_finite": "weights that are not finite must not overwrite a checkpoint",
    "train/progress.py:on_train_epoch_end": "prints the loss of the epoch",
    "nn/features.py:_input": "reads images: online probe, prior, clusters",
    "nn/features.py:features_of": "stores their features on the CPU",
}
PLANNING = {"train/memory.py:kept_bytes": "makes an empty copy of the network, before training"}
OF_ADC = {
    "train/module.py:batch_of": "held-out images, before training and after epochs",
    "train/class_mass.py:measure": "their labels, and what the neighbour distributions know about them",
}
CLUSTERING = {"train/callbacks.py:on_train_epoch_start": "clusters are computed on the CPU, before an epoch"}
ADAPTING = OF_ADC | {
    "adaptation/run.py:prepare": "moves the encoder to the GPU, once",
    "nn/weights.py:body_state": "saves the backbone",
    "nn/backbone.py:describe": "saves mean and standard deviation of the images",
    "adaptation/activations.py:batch_views": "reads images",
    "nn/features.py:encoding": "moves the prior to the GPU, once",
}
OF_TRUNK = {
    "adaptation/run.py:start_at_prior": "the linear head starts at a solution found on the CPU, once",
    "nn/features.py:fingerprint": "the trunk's weights are part of the name of its cache",
    "nn/norms.py:_folded": "compares the folded trunk with the trunk, once",
    "adaptation/activations.py:compute_activations": "moves the trunk's example to the GPU, once",
    "adaptation/activations.py:flat_activations": "stores activations on the CPU",
    "adaptation/module.py:_tail_features": "reads activations and compares features on the CPU",
}
OF_WHOLE = {"adaptation/module.py:live_view_features": "compares features of views on the CPU"}
EVALUATING = {
    "nn/features.py:encoding": "moves the network to the GPU, once",
    "nn/features.py:fingerprint": "the weights are part of the name of the cached features",
    "nn/features.py:_input": "reads images",
    "nn/features.py:features_of": "stores features on the CPU",
    "evaluation/context.py:_features": "reads the stored features",
    "evaluation/context.py:train_labels": "reads labels, once",
    "evaluation/context.py:test_labels": "reads labels, once",
    "evaluation/context.py:accuracy": "counts hits by class on the CPU",
    "evaluation/geometry.py:geometry": "decompositions of few features in float64 are done on the CPU",
    "evaluation/classifiers.py:linear_probe": "learning rates, once",
    "measure/knn.py:_voted": "reads the number of classes",
}


class OnFakeGpu(CPUAccelerator):
    """Lets Lightning put a module on any device."""

    def setup_device(self, device: torch.device) -> None:
        return


class StepWaits(L.Callback):
    """Keeps the waits of steps apart from those between them."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.between = gpu, gpu.waits
        self.logged: Waits = {}
        self.others: Waits = {}
        self.steps = {True: 0, False: 0}  # logged, not logged

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, *batch: Any) -> None:
        assert isinstance(module, Pretraining)
        logged = module.global_step % module.config.log_every == 0
        self.gpu.waits = self.logged if logged else self.others
        self.steps[logged] += 1

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *batch: Any) -> None:
        self.gpu.waits = self.between


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with --device gpu are on the fake one."""

    def make(**settings: Any) -> L.Trainer:
        if settings["accelerator"] == "gpu":
            settings |= {"accelerator": OnFakeGpu(), "strategy": SingleDeviceStrategy(device=CUDA)}
        return L.Trainer(**settings)

    monkeypatch.setattr(trainer, "L", SimpleNamespace(Trainer=make))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("glf.device.is_available", lambda device: True)
    for module in ("glf.train.resolve", "glf.train.memory"):
        monkeypatch.setattr(f"{module}.memory", lambda device: 2**34)


def metrics(run: Path) -> list[dict[str, float]]:
    """What is logged, without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in line if name not in ("images_per_second", "data_wait")} for line in lines]


def train_on_both(
    command: Callable[..., Any], config: type, folder: Path, console: Console, *, rel: float = 1e-4, **options: Any
) -> Waits:
    """Check that a run on the GPU logs what it logs on the CPU, and where its steps wait; return its other waits."""
    settings = {
        "image_size": 16,
        "max_images": 80,
        "batch_size": 16,
        "epochs": 1,
        "log_every": 2,
        "val_images": 16,
        "workers": 0,
        **options,
    }
    command(config(device="cpu", out=folder / "cpu", **settings), console)
    with FakeGpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLF_CACHE", str(folder / "cache"))  # nothing is read that the first run has computed
        steps = StepWaits(gpu)
        command(config(device="gpu", out=folder / "gpu", **settings), console, [steps])
    for found, expected in zip(metrics(folder / "gpu"), metrics(folder / "cpu"), strict=True):
        assert found == pytest.approx(expected, rel=rel, abs=rel / 100)
    assert steps.steps == {True: 2, False: 2}
    assert steps.others == {}
    assert set(steps.logged) == set(LOGGED_STEP)
    gpu.waits.pop("lightning")  # moves the module to the GPU and back
    return gpu.waits


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize(
    ("method", "options", "more"),
    [
        ("byol+adc", {}, OF_ADC),
        ("moco+adc", {"accumulate": 2, "options": {"queue": 64}}, OF_ADC),
        ("pcl+dcm", {"optimizer": "sgd", "options": {"queue": 64, "clusters": 4, "warmup": 0}}, CLUSTERING | OF_ADC),
        ("swav", {"optimizer": "lars", "augment": "multicrop", "prototypes": 16}, {}),
        ("dino", {"accumulate": 2, "augment": "multicrop", "prototypes": 16}, {}),
        ("diet", {"augment": "single"}, {}),
    ],
)
def test_a_run_waits_at_logged_steps_only(
    method: str, options: dict[str, Any], more: dict[str, str], few_images: str, tmp_path: Path, console: Console
) -> None:
    given = {"method": method, "data": few_images, "auto": False, **options}
    waits = train_on_both(pretrain, PretrainConfig, tmp_path, console, **given)
    assert set(waits) == {*BETWEEN_STEPS, *PLANNING, *more}


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"train": "tail", "views": 4, "adc": AdcOptions(upsilon=0.3, lpm_at="bank")}, OF_TRUNK),
        ({"train": "all", "l2sp": 0.1}, OF_WHOLE),
    ],
    ids=["tail", "all"],
)
def test_an_adaptation_waits_at_logged_steps_only(
    options: dict[str, Any], more: dict[str, str], few_images: str, tmp_path: Path, console: Console
) -> None:
    small = {"data": few_images, "batch_size": 64, "epochs": 1, "auto": False, "workers": 0}
    pretrain(PretrainConfig(method="simclr", out=tmp_path / "encoder", **small), console)
    given = {"encoder": f"run:{tmp_path / 'encoder'}", "data": few_images, **options}
    # Activations in float16 differ by a last digit, and AdamW's first steps hardly depend on the size of a gradient.
    waits = train_on_both(adapt, AdaptConfig, tmp_path, console, rel=0.02, **given)
    assert set(waits) == {*BETWEEN_STEPS, *ADAPTING, *more}
    assert COPIES_BACK not in waits["nn/features.py:encoding"], "features are not computed on the CPU"


@pytest.mark.usefixtures("with_gpu")
def test_an_evaluation_has_the_results_of_the_cpu(few_images: str, tmp_path: Path, console: Console) -> None:
    small = {"data": few_images, "batch_size": 64, "epochs": 1, "auto": False, "workers": 0}
    pretrain(PretrainConfig(method="simclr", out=tmp_path / "run", **small), console)
    settings = {"suite": ("knn", "linear", "geometry"), "probe_epochs": 3, "knn_k": 20, "artifacts": False}

    def evaluated(device: str) -> dict[str, float]:
        config = EvaluateConfig(run=tmp_path / "run", out=tmp_path / device, device=device, **settings)
        rows = evaluate(config, console)["rows"]
        return {f"{row} {name}": value for row, values in rows.items() for name, value in values.items()}

    expected = evaluated("cpu")
    with FakeGpu() as gpu:
        assert evaluated("gpu") == pytest.approx(expected, rel=1e-4)
    assert set(gpu.waits) == set(EVALUATING)


# --- measures

FINITE = {"measure/blocks.py:blocks": "features that are not finite are an error"}
LABELS = {"measure/classes.py:class_means": "checks the labels; the number of classes is that of the result"}
MEASURES: dict[str, tuple[Callable[[Tensor, Tensor], Any], dict[str, str]]] = {
    "k-NN": (lambda x, y: knn.knn_predict(x, y, x[:9] + 0.1, 3), {"measure/knn.py:_voted": "number of classes"}),
    "weighted k-NN": (
        lambda x, y: knn.weighted_knn_predict(x, y, x[:9] + 0.1, 3, 0.1),
        {"measure/knn.py:_voted": "number of classes"},
    ),
    "most similar": (lambda x, y: knn.most_similar(x, x[:9], 4), {}),
    "neighbours kept": (
        lambda x, y: knn.neighbours_kept(x, x[:, :2], 4),
        {"measure/knn.py:_others": "removes each sample from its neighbours"},
    ),
    "effective rank": (
        lambda x, y: geometry.effective_rank(x),
        {
            **FINITE,
            "measure/geometry.py:spectrum": "constant features have none",
            "measure/geometry.py:effective_rank": "returns a number",
            "measure/geometry.py:_perplexity": "returns a number",
        },
    ),
    "RankMe": (
        lambda x, y: geometry.rank_me(x),
        {
            **FINITE,
            "measure/geometry.py:rank_me": "returns a number",
            "measure/geometry.py:_perplexity": "returns a number",
        },
    ),
    "spread": (lambda x, y: geometry.spread(x), {"measure/geometry.py:spread": "returns a number"}),
    "alignment": (
        lambda x, y: geometry.alignment(x, x.flip(0)),
        {**FINITE, "measure/geometry.py:alignment": "returns a number"},
    ),
    "uniformity": (
        lambda x, y: geometry.uniformity(x),
        {**FINITE, "measure/geometry.py:uniformity": "returns a number"},
    ),
    "class means": (lambda x, y: classes.class_means(x, y), {**FINITE, **LABELS}),
    "compactness": (
        lambda x, y: classes.compactness(x, y),
        {**FINITE, **LABELS, "measure/classes.py:compactness": "returns a number"},
    ),
    "separability": (
        lambda x, y: classes.separability(x, y),
        {**FINITE, **LABELS, "measure/classes.py:separability": "returns a number"},
    ),
    "between share": (
        lambda x, y: classes.between_share(x, y),
        {
            **FINITE,
            **LABELS,
            "measure/classes.py:between_share": "returns a number",
            "measure/classes.py:within_variance": "returns a number",
        },
    ),
    "histograms": (
        lambda x, y: [histogram.tolist() for histogram in classes.similarity_histograms(x, y, 5)],
        {**FINITE, "measure/classes.py:similarity_histograms": "counts on the CPU"},
    ),
    "near-duplicates": (
        lambda x, y: [found.tolist() for found in near_duplicates(x, 0.8)],
        {
            **FINITE,
            "measure/duplicates.py:near_duplicates": "keeps the largest cosines on the CPU",
            "measure/duplicates.py:_links": "finds components on the CPU",
        },
    ),
    "outlier score": (
        lambda x, y: neighbour_entropy(x, companions=7),
        {"measure/outlier_score.py:neighbour_entropy": "features that are not finite are an error"},
    ),
    "linear probe": (
        lambda x, y: linear_probe(x, y, x, (0.1, 0.2), classes=3, epochs=4, batch_size=8),
        {"evaluation/classifiers.py:linear_probe": "learning rates, once"},
    ),
    "logistic regression": (
        lambda x, y: LogisticRegression(3).fit(x, y, 0.1)(x),
        {"evaluation/classifiers.py:fit": "L-BFGS searches along a line and decides when to end"},
    ),
}


@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_those_of_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several blocks."""
    measure, allowed = MEASURES[name]
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 8)
    monkeypatch.setattr(knn, "BANK_BLOCK", 8)
    monkeypatch.setattr(knn, "MAX_SIMILARITIES", 32)
    waits = same_on_gpu(lambda load: measure(load(draw(30, 4)), load(torch.arange(30) % 3)))
    assert set(waits) == set(allowed)
    if name in ("linear probe", "outlier score"):
        assert [len(reasons) for reasons in waits.values()] == [1], "not once per epoch or draw"
