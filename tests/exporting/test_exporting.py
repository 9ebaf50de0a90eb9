"""Exported files give the run's features in a process with timm, torchvision and onnxruntime, but without glf."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from rich.console import Console

from glf.config.inference import ExportConfig, Format
from glf.config.training import PretrainConfig
from glf.data.batches import to_tensor
from glf.data.sources import load_images
from glf.evaluation.classifiers import linear_probe
from glf.exporting.formats import EXPORTERS
from glf.exporting.loading_code import safetensors_code
from glf.exporting.write import Exported, check_export, export
from glf.measure.knn import knn_predict
from glf.nn.backbone import Backbone
from glf.nn.features import resize_to
from glf.nn.weights import load_backbone, save_backbone
from machine import files_up_to
from photos import write_photos
from without_glf import WITHOUT_GLF

# name -> format, backbone (a run, or a model by name), channels, image size
CASES: dict[str, tuple[Any, str, int, int]] = {
    "timm, of a run": ("timm", "run", 3, 120),
    "torchvision, of the same run": ("torchvision", "run", 3, 120),
    "onnx, of the same run": ("onnx", "run", 3, 120),
    "timm, transformer for small images": ("timm", "timm:test_vit", 1, 32),
    "safetensors, small_resnet": ("safetensors", "small_resnet", 1, 28),
    "safetensors, small_resnet with pooling": ("safetensors", "small_resnet", 3, 64),
    "safetensors, stem for small images": ("safetensors", "torchvision:resnet18", 1, 32),
    "safetensors, stride for small images": ("safetensors", "timm:test_convnext", 3, 64),
    "onnx, small_resnet": ("onnx", "small_resnet", 1, 28),
}

LOAD = """
import json, os, re
from pathlib import Path
import numpy as np, torch

for line in Path(sys.argv[1]).read_text().splitlines():
    case = json.loads(line)
    os.chdir(case["folder"])
    text = Path("README.md").read_text()
    blocks = re.findall("```python\\n(.*?)```", text, flags=re.DOTALL)
    scope = {}
    exec(blocks[0], scope)
    x = np.load(case["images"])
    found = {}
    if case["format"] == "onnx":
        features = scope["model"](x)
        found = dict(scope["session"].get_modelmeta().custom_metadata_map)
        found = {"mean": json.loads(found["mean"]), "std": json.loads(found["std"]), "size": int(found["centre_crop"])}
    else:
        if case["format"] == "safetensors":
            from safetensors import safe_open
            with safe_open("backbone.safetensors", framework="pt") as file:
                found = json.loads(file.metadata()["preprocessing"])
        elif case["format"] == "torchvision":
            found = json.loads(Path("backbone.pth.glf.json").read_text())
        found = {"mean": found.get("mean"), "std": found.get("std"), "size": found.get("centre_crop")}
        if case["format"] == "timm":
            again = {}
            exec(blocks[1], again)  # by the folder, with its preprocessing
            import timm
            settings = timm.data.resolve_model_data_config(again["model"])
            found = {"mean": settings["mean"], "std": settings["std"], "size": settings["input_size"][-1]}
            found["crop"] = int(settings["input_size"][-1] / settings["crop_pct"])
        mean, std = (torch.tensor(found[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
        normal = (torch.from_numpy(x) - mean) / std
        with torch.no_grad():
            features = scope["model"](normal).numpy()
            if case["format"] == "timm":
                assert torch.equal(again["model"].eval()(normal), torch.from_numpy(features))
    np.save(case["features"], features)
    Path(case["found"]).write_text(json.dumps(found))
"""


def saved(backbone: Backbone, folder: Path) -> Path:
    """Save a backbone after a training step on noise: initial batch statistics would hide mistakes."""
    backbone.train()(torch.rand(8, backbone.channels, backbone.image_size, backbone.image_size))
    save_backbone(backbone, folder / "backbone.safetensors")
    return folder / "backbone.safetensors"


def real_images(channels: int, size: int) -> np.ndarray:
    pixels = (
        load_images("fashion-mini", "test").pixels[: 4 * channels].reshape(channels, 4, 28, 28).transpose(1, 2, 3, 0)
    )
    return np.ascontiguousarray(resize_to(to_tensor(pixels).float() / 255, size).numpy())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Exported, Path, Path]]:
    """Export every case and load all of them in one process without glf."""
    from glf.train.run import pretrain

    place = tmp_path_factory.mktemp("exported")
    quiet = Console(file=io.StringIO())
    photos = write_photos(place / "photos", 16)
    pretrain(
        PretrainConfig(
            data=str(photos), method="simclr+adc", backbone="resnet18", image_size=120, batch_size=8, epochs=1,
            val_images=0, out=place / "run",
        ),
        quiet,
    )  # fmt: skip
    torch.manual_seed(0)
    done, lines = {}, []
    for number, (name, (format_, model, channels, size)) in enumerate(CASES.items()):
        folder = place / str(number)
        folder.mkdir()
        run = place / "run"
        if model != "run":
            mean, std = (0.3,) * channels, (0.2,) * channels
            run = saved(Backbone(model, channels=channels, image_size=size, mean=mean, std=std), folder)
        written = export(ExportConfig(run=run, format=format_, out=folder / "out"), quiet)
        np.save(folder / "images.npy", real_images(channels, size))
        case = {"folder": str(folder / "out"), "format": format_}
        case |= {
            key: str(folder / f"{key}.{end}")
            for key, end in (("images", "npy"), ("features", "npy"), ("found", "json"))
        }
        lines.append(json.dumps(case))
        done[name] = (written, run, folder)
    (place / "cases.jsonl").write_text("\n".join(lines))
    command = [sys.executable, "-I", "-c", WITHOUT_GLF + LOAD, str(place / "cases.jsonl")]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return done


@pytest.mark.parametrize("name", CASES)
def test_the_features_without_glf_are_those_of_the_run(exported: dict[str, Any], name: str) -> None:
    written, run, folder = exported[name]
    backbone = load_backbone(run).eval()
    x = torch.from_numpy(np.load(folder / "images.npy"))
    with torch.no_grad():
        expected = backbone(x).numpy()
    features = np.load(folder / "features.npy")
    np.testing.assert_allclose(features, expected, rtol=0, atol=1e-5)
    assert np.ptp(features, axis=0).max() > 1e-3, "features differ between images"
    assert written.difference < 1e-5


@pytest.mark.parametrize("name", ["onnx, small_resnet", "timm, transformer for small images"])
def test_probes_on_the_file_and_on_the_run_agree(
    exported: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run, folder = exported[name]
    backbone = load_backbone(run).eval()
    monkeypatch.chdir(folder / "out")
    scope: dict[str, Any] = {}
    exec(re.findall("```python\n(.*?)```", Path("README.md").read_text(), flags=re.DOTALL)[0], scope)

    def exported_model(x: torch.Tensor) -> torch.Tensor:
        if "session" in scope:
            return torch.from_numpy(scope["model"](x.numpy()))
        features: torch.Tensor = scope["model"]((x - backbone.mean) / backbone.std)
        return features

    found = {}
    for encoder in (backbone, exported_model):
        features, labels = [], []
        for split, count in (("train", 400), ("test", 400)):
            images = load_images("fashion-mini", split)
            with torch.no_grad():
                x = resize_to(to_tensor(images.pixels[:count]).float() / 255, backbone.image_size)
                features.append(encoder(x))
            labels.append(torch.from_numpy(images.targets[:count]).long())
        logits = linear_probe(features[0], labels[0], features[1], classes=10, epochs=50)[0]
        right = (logits.argmax(1) == labels[1], knn_predict(features[0], labels[0], features[1]) == labels[1])
        found[encoder] = [float(one.float().mean()) for one in right]
    assert found[backbone] == found[exported_model]
    assert min(found[backbone]) > 0.2  # an untrained network is better than chance on ten classes


@pytest.mark.parametrize("name", CASES)
def test_the_preprocessing_is_stored_with_the_file(exported: dict[str, Any], name: str) -> None:
    _, run, folder = exported[name]
    backbone, found = load_backbone(run), json.loads((folder / "found.json").read_text())
    np.testing.assert_allclose(found["mean"], backbone.mean.flatten(), atol=1e-6)
    np.testing.assert_allclose(found["std"], backbone.std.flatten(), atol=1e-6)
    assert found["size"] == backbone.image_size
    if name == "timm, of a run":
        assert found["crop"] == round(120 * 8 / 7)


def test_the_content_of_the_model_card(exported: dict[str, Any]) -> None:
    written, _, _ = exported["timm, of a run"]
    text = written.card.read_text()
    for words in (
        "simclr+adc", "| align |", "| constrain |", "dcm", "16 images, 3 files skipped",
        "Not evaluated yet: run `glf evaluate", "Called from Python with these options", "'image_size': 120",
        "fill in: your licence", "resize to square: 137", "def squared(image):",
        'timm.create_model("resnet18", num_classes=0, checkpoint_path=\'model.safetensors\')', "library_name: timm",
    ):  # fmt: skip
        assert words in text, words
    vit = exported["timm, transformer for small images"][0].card.read_text()
    assert 'create_model("test_vit", num_classes=0, in_chans=1, img_size=32, patch_size=4, checkpoint' in vit


def test_the_evaluation_is_in_the_model_card(small_run: Any, few_images: str, console: Console) -> None:
    from glf.config.evaluation import EvaluateConfig
    from glf.evaluation.suite import evaluate

    run = small_run(data=few_images, max_images=None)
    found = evaluate(EvaluateConfig(run=run, suite=("knn", "geometry")), console)
    text = export(ExportConfig(run=run, format="safetensors"), console).card.read_text()
    assert (run / "export" / "safetensors" / "backbone.safetensors").is_file()
    assert "| metric | pixels | untrained | trained |" in text
    for key, words in found["protocols"].items():
        assert re.search(rf"^\| {re.escape(words)} \|.*\d", text, flags=re.MULTILINE), key
    assert found["percent"]
    assert all(f"{100 * found['rows']['trained'][key]:.1f} %" in text for key in found["percent"])


# --- errors


@pytest.mark.parametrize(
    ("model", "channels", "size", "format_"),
    [
        ("small_resnet", 1, 28, "timm"),
        ("small_resnet", 3, 224, "torchvision"),
        ("resnet18", 3, 64, "timm"),  # a different first convolution
        ("timm:test_convnext", 3, 64, "timm"),  # a different stride, which no tensor shape shows
        ("torchvision:resnet18", 1, 224, "torchvision"),
        ("timm:test_vit", 3, 160, "torchvision"),
    ],
)
def test_models_the_format_cannot_represent_are_refused_with_advice(tmp_path, console, model, channels, size, format_):
    run = saved(Backbone(model, channels=channels, image_size=size), tmp_path)
    with pytest.raises(ValueError, match=rf"not a plain {format_} model: .*--format safetensors.*or --format onnx"):
        export(ExportConfig(run=run, format=format_, out=tmp_path / "out"), console)
    assert not (tmp_path / "out").exists()


def test_a_file_with_other_features_is_never_written(tmp_path, console, monkeypatch):
    run = saved(Backbone("small_resnet", channels=1, image_size=28), tmp_path)
    loading = safetensors_code(load_backbone(run))
    wrong = loading._replace(code=loading.code.replace("stride=2", "stride=1"))
    exporter = EXPORTERS["safetensors"]
    monkeypatch.setitem(EXPORTERS, "safetensors", replace(exporter, loading_code=lambda _: wrong))
    with pytest.raises(ValueError, match=r"would give other features than small_resnet .*nothing was written"):
        export(ExportConfig(run=run, format="safetensors", out=tmp_path / "out"), console)
    assert list((tmp_path / "out").iterdir()) == []
    assert check_export(loading.run(run), load_backbone(run).eval(), exporter) == 0


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
@pytest.mark.parametrize(
    "name", ['a"+str(__import__("pathlib").Path("PWNED").touch())+"', "it's", 'a "quote"', "back\\slash", "line\nbreak"]
)
def test_a_name_is_never_code(name: str, kind: Format, tmp_path, console, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backbone = Backbone("small_resnet", channels=1, image_size=28)
    folder = tmp_path / name
    folder.mkdir()
    done = export(ExportConfig(run=saved(backbone, folder), format=kind, out=folder / "out"), console)
    assert done.file.is_file()
    assert not (tmp_path / "PWNED").exists()
    (code,) = re.findall(r"```python\n(.*?)```", done.card.read_text(), flags=re.DOTALL)[:1]
    monkeypatch.chdir(done.file.parent)
    exec(code, {})  # as written on the card, next to the file


def test_a_full_disk_leaves_nothing(tmp_path, console):
    run = saved(Backbone("small_resnet", channels=1, image_size=28), tmp_path)
    with files_up_to(50_000), pytest.raises(OSError, match=r"could not be written \(File too large\): free some space"):
        export(ExportConfig(run=run, format="safetensors", out=tmp_path / "out"), console)
    assert list((tmp_path / "out").iterdir()) == []


def test_out_may_be_a_file(tmp_path, console):
    run = saved(Backbone("small_resnet", channels=1, image_size=28), tmp_path)
    done = export(ExportConfig(run=run, format="safetensors", out=tmp_path / "mine.safetensors"), console)
    assert (done.file, done.card) == (tmp_path / "mine.safetensors", tmp_path / "mine.safetensors.glf.md")
    assert "load it without glf" in console.file.getvalue()
    assert load_backbone(done.file).describe() == load_backbone(run).describe(), "glf reads it too"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run": Path("no/such/run")}, "is no/such/run the directory of a finished run"),
        (
            {"run": Path("timm:resnet18")},
            "timm:resnet18 is already a model of another library; glf export takes a run directory",
        ),
        ({"out": Path("x.onnx"), "format": "safetensors"}, r"must end with \.safetensors, or be a folder"),
    ],
)
def test_mistakes_are_explained(settings, message, console):
    with pytest.raises((ValueError, OSError), match=message):
        export(ExportConfig(**({"run": Path("r")} | settings)), console)


def test_missing_packages_of_onnx_name_the_extra(monkeypatch, console):
    monkeypatch.setattr("glf.exporting.write.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs onnx, onnxscript, onnxruntime: pip install 'glf\[onnx\]'"):
        export(ExportConfig(run=Path("r"), format="onnx"), console)


def test_every_format_of_the_command_has_an_exporter():
    assert tuple(EXPORTERS) == get_args(Format)
