"""glf push: timm loads the folder without glf, the hub gets its files byte for byte, and mistakes are one line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from rich.console import Console

from glf.config.evaluation import EvaluateConfig
from glf.config.inference import ExportConfig, PushConfig
from glf.config.training import PretrainConfig, ResolvedAdaptConfig, ResolvedPretrainConfig
from glf.evaluation.suite import evaluate
from glf.exporting.card_data import header
from glf.exporting.hub import FILES, push
from glf.exporting.write import export
from glf.nn.backbone import Backbone
from glf.nn.weights import load_backbone, save_backbone
from glf.result import read_result
from glf.train.run import pretrain
from hub_server import Hub, hub_server
from without_glf import WITHOUT_GLF

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # in the client's upload
TOKEN = "hf_of_a_test"
LOAD = """
import numpy as np, timm, torch

images, out, *names = sys.argv[1:]
found = {}
for number, name in enumerate(names):
    model = timm.create_model(name, pretrained=True).eval()
    settings = timm.data.resolve_model_data_config(model)
    mean, std = (torch.tensor(settings[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        found[f"arr_{number}"] = model((torch.from_numpy(np.load(images)) - mean) / std).numpy()
np.savez(out, **found)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated run of a model that timm builds by name."""
    out = tmp_path_factory.mktemp("runs") / "a"
    config = PretrainConfig(
        backbone="timm:test_resnet", stem="standard", method="simclr+dcm", max_images=96, batch_size=32, epochs=1,
        val_images=16, device="cpu", workers=0, out=out,
    )  # fmt: skip
    pretrain(config, Console(quiet=True))
    suite: dict[str, Any] = {"suite": ("knn", "geometry"), "max_images": 200, "artifacts": False}
    evaluate(EvaluateConfig(run=out, **suite), Console(quiet=True))
    return out


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The real client with a hub on this machine, and without the transfer that needs a server of its own."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hub_server() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield server


def test_timm_loads_what_was_pushed_without_glf(run: Path, hub: Hub, tmp_path: Path, console: Console) -> None:
    done = push(PushConfig(run=run, name="user/birds", license="mit"), console)
    assert done.url == f"{hub.url}/user/birds"
    folder = run / "export" / "hub"
    assert hub.files == {name: (folder / name).read_bytes() for name in FILES}, "byte for byte"
    assert hub.created == [{"name": "birds", "organization": "user", "visibility": "private"}]
    for path, token in hub.tokens.items():  # addresses of large files are signed instead; the last is the client's own
        assert token == f"Bearer {TOKEN}" or path.startswith(("/lfs/", "/api/agent")), path
    assert hub.checked == [(folder / "README.md").read_text()]
    assert hub.summary.startswith("Upload by glf ")
    assert len(hub.objects) == 1, "the weights as a large file"
    asked = [path for path in hub.asked if "/api/agent" not in path]
    assert [path.partition(" ")[2] for path in asked] == [
        "/api/repos/create",
        "/api/validate-yaml",
        "/api/models/user/birds/preupload/main",
        "/user/birds.git/info/lfs/objects/batch",
        *(f"/lfs/{sha}" for sha in hub.objects),
        "/api/models/user/birds/commit/main",
    ]

    backbone = load_backbone(run).eval()
    images = np.random.default_rng(0).random((3, backbone.channels, *2 * (backbone.image_size,)), dtype=np.float32)
    np.save(tmp_path / "images.npy", images)
    names = [f"local-dir:{folder}", "hf-hub:user/birds"]
    command = [
        sys.executable,
        "-c",
        WITHOUT_GLF + LOAD,
        str(tmp_path / "images.npy"),
        str(tmp_path / "out.npz"),
        *names,
    ]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
    loaded = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    with torch.no_grad():
        expected = backbone(torch.from_numpy(images)).numpy()
    for features in np.load(tmp_path / "out.npz").values():
        assert np.abs(features - expected).max() <= 1e-5
    assert np.ptp(expected, axis=0).max() > 1e-3, "features differ between images"
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert 'timm.create_model("hf-hub:user/birds", pretrained=True)' in said
    assert TOKEN not in said


def test_a_dry_run_contacts_nothing(run: Path, hub: Hub, tmp_path: Path, monkeypatch: Any, console: Console) -> None:
    monkeypatch.delenv("HF_TOKEN")
    done = push(PushConfig(run=run, name="user/birds", dry_run=True, out=tmp_path / "folder"), console)
    assert done == (tmp_path / "folder", None)
    assert {path.name for path in (tmp_path / "folder").iterdir()} == set(FILES)
    assert hub.asked == []
    assert "nothing was uploaded" in console.file.getvalue()  # type: ignore[attr-defined]
    push(PushConfig(run=run, name="user/birds", dry_run=True, out=tmp_path / "folder"), console)  # replaces its own


def test_the_hub_reads_the_header_of_the_card(run: Path, tmp_path: Path, console: Console) -> None:
    push(PushConfig(run=run, name="user/birds", dry_run=True, license="cc-by-4.0", out=tmp_path / "x"), console)
    card = ModelCard.load(tmp_path / "x" / "README.md")
    data = card.data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == ("timm", "image-feature-extraction")
    assert (data["license"], data["datasets"]) == ("cc-by-4.0", ["zalando-datasets/fashion_mnist"])
    assert data["tags"] == ["timm", "self-supervised-learning", "glf", "simclr", "dcm"]
    assert "base_model" not in data
    evaluation = read_result(run)["evaluation"]
    name, results = model_index_to_eval_results(data["model-index"])
    assert name == "birds"
    assert {one.metric_name: one.metric_value for one in results} == {
        evaluation["protocols"][key]: evaluation["rows"]["trained"][key] for key in ("knn", "knn5")
    }, "accuracies only, of this backbone"
    assert {(one.metric_type, one.dataset_name, one.dataset_split) for one in results} == {
        ("accuracy", evaluation["data"], evaluation["split"])
    }
    assert eval_results_to_model_index(name, results) == data["model-index"]
    assert "Of the weights: cc-by-4.0." in card.text
    assert '"hf-hub:user/birds"' in card.text


ENCODERS = {
    "timm:resnet18": ("timm/resnet18.a1_in1k", "finetune"),
    "run:somewhere/mine": (None, None),  # a name that is no id of the hub is in the text only
}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_adapted_run_names_its_base(encoder: str) -> None:
    trained = ResolvedAdaptConfig(encoder=encoder, data="photos")
    data = ModelCard(header("timm", {}, trained, "mit", "user/x") + "\n\ntext").data.to_dict()
    assert (data.get("base_model"), data.get("base_model_relation")) == ENCODERS[encoder]
    assert "datasets" not in data
    assert "model-index" not in data


def test_an_export_has_the_same_header_without_a_name(run: Path, tmp_path: Path, console: Console) -> None:
    text = export(ExportConfig(run=run, format="safetensors", out=tmp_path / "x"), console).card.read_text()
    data = ModelCard(text).data.to_dict()
    assert (data["library_name"], data["license"], data["model-index"][0]["name"]) == ("pytorch", "unknown", "backbone")
    assert "license: unknown # fill in" in text
    assert "hf-hub" not in text


def test_odd_names_of_data_are_no_yaml() -> None:
    evaluation = {
        "data": "a: b\n- c's \"photos\"", "split": "test", "protocols": {"knn": "k-NN: #1"}, "percent": ["knn"],
        "rows": {"trained": {"knn": 0.5}},
    }  # fmt: skip
    trained = ResolvedPretrainConfig(data="a: b\n- c")
    data = ModelCard(header("timm", {"evaluation": evaluation}, trained, "mit", "user/x") + "\n\ntext").data.to_dict()
    (result,) = data["model-index"][0]["results"]
    assert result["dataset"] == {"name": evaluation["data"], "type": "a-b-c-s-photos", "split": "test"}


# --- what may go wrong


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"/api/repos/create": 403}, r"your token may not write to user/birds \(403\): the name is someone else's, or"),
        ({"/api/repos/create": 401}, r"the hub does not accept the token \(401\): run `hf auth login`"),
        ({"/api/models/user/birds/preupload": 403}, r"your token may not write to user/birds \(403\)"),
        ({"/api/models/user/birds/commit": 500}, r"the hub refused user/birds \(500: as the test wants\)"),
        ({"/lfs/": 400}, r"the hub refused user/birds \(400"),
    ],
)
def test_what_the_hub_refuses(
    answers: dict[str, int], words: str, run: Path, hub: Hub, tmp_path: Path, console: Console
) -> None:
    hub.answers = answers
    out = tmp_path / "folder"
    with pytest.raises(OSError, match=words) as error:
        push(PushConfig(run=run, name="user/birds", out=out), console)
    assert str(error.value).endswith("/folder is whole, and the same command uploads it")
    assert "\n" not in str(error.value)
    assert {path.name for path in out.iterdir()} == set(FILES)
    assert hub.files == {}
    hub.answers = {}
    push(PushConfig(run=run, name="user/birds", out=out), console)
    assert set(hub.files) == set(FILES)


def test_a_repository_that_is_public_needs_the_word(run: Path, hub: Hub, tmp_path: Path, console: Console) -> None:
    config = PushConfig(run=run, name="user/birds", out=tmp_path / "folder")
    hub.repositories["user/birds"] = False
    with pytest.raises(
        PermissionError, match=r"^user/birds exists and is public: add --public, or choose another name"
    ):
        push(config, console)
    assert hub.files == {}
    push(replace(config, public=True), console)
    assert set(hub.files) == set(FILES)
    assert hub.created[-1]["visibility"] == "public"
    hub.repositories["user/birds"] = True
    push(config, console)  # one's own, which is private


def test_no_network(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, console: Console) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        OSError, match=r"^the hub was not reached, or stopped answering \(.*refused\): check the network"
    ):
        push(PushConfig(run=run, name="user/birds", out=tmp_path / "x"), console)


def test_no_token(run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, console: Console) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"^no token of Hugging Face's hub: run `hf auth login`, or set HF_TOKEN"):
        push(PushConfig(run=run, name="user/birds", out=tmp_path / "x"), console)
    assert not (tmp_path / "x").exists()
    assert hub.asked == []


def test_other_features_are_never_uploaded(run: Path, hub: Hub, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("glf.exporting.write.FEATURE_TOLERANCE", -1)  # below any difference
    with pytest.raises(ValueError, match="the timm file would give other features than timm:test_resnet"):
        push(PushConfig(run=run, name="user/birds", out=tmp_path / "x"), Console(quiet=True))
    assert list((tmp_path / "x").iterdir()) == []
    assert hub.asked == []


@pytest.mark.parametrize("name", ["birds", "user/a b", "user/a/b", "../x", "user/--x", ""])
def test_a_bad_name(name: str, console: Console) -> None:
    with pytest.raises(ValueError, match=r"is no name of a repository: .* USER/NAME|names no user: .* USER/NAME"):
        push(PushConfig(run=Path("no/such"), name=name, dry_run=True), console)


@pytest.mark.parametrize("licence", ["MIT", "my licence", "a\nb: c"])
def test_a_bad_licence(licence: str) -> None:
    for config in (PushConfig, ExportConfig):
        with pytest.raises(ValueError, match=r"^--license takes a name of Hugging Face's hub, such as mit or apache"):
            config(run=Path("a"), license=licence, **({"name": "user/x"} if config is PushConfig else {}))


def test_a_model_that_timm_cannot_build_by_name(tmp_path: Path, hub: Hub, console: Console) -> None:
    save_backbone(Backbone("small_resnet", channels=1, image_size=28), tmp_path / "backbone.safetensors")
    with pytest.raises(ValueError, match=r"small_resnet at 28 px is not a plain timm model") as error:
        push(PushConfig(run=tmp_path / "backbone.safetensors", name="user/birds"), console)
    assert f"`glf export {tmp_path}/backbone.safetensors --format safetensors` writes it" in str(error.value)
    assert "`hf upload user/birds FOLDER`" in str(error.value)
    assert not (tmp_path / "export").exists()
    assert hub.asked == []


def test_a_folder_of_the_users_is_not_replaced(run: Path, tmp_path: Path, hub: Hub, console: Console) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ValueError, match="exists and was not written by this command"):
        push(PushConfig(run=run, name="user/birds", out=tmp_path), console)
    with pytest.raises(ValueError, match=r"x\.safetensors is no folder: choose a name without"):
        push(PushConfig(run=run, name="user/birds", out=tmp_path / "x.safetensors"), console)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert hub.asked == []


def test_the_client_comes_with_timm() -> None:
    from importlib.metadata import requires

    assert any(line.startswith("huggingface") for line in requires("timm") or [])
