"""The model card of an adapted encoder: from which model it was made, on which images, and what was kept."""

from pathlib import Path
from typing import Any

from glf.config.training import AdaptConfig
from glf.rundir import read_config
from glf.runfiles import BACKBONE


def base_model(trained: AdaptConfig) -> str:
    """The model that an encoder was adapted from: its id on Hugging Face's hub if it has one, otherwise its name.

    A run that was itself adapted is followed to its own base.
    """
    seen: set[Path] = set()
    while (run := _run(trained)) is not None and run not in seen:
        seen.add(run)
        config = _adapted(run)
        if config is None:
            break
        trained = config
    return _name(trained)


def adaptation(trained: AdaptConfig, content: dict[str, Any]) -> str:
    """From what the encoder was adapted, on which data, what was chosen, and how many neighbours were kept."""
    found, images = content.get("adaptation"), content.get("data", {})
    count = f" ({images['train']:,} images)" if images else ""
    name, base = _name(trained), base_model(trained)
    origin = f"`{name}`" if name == base else f"`{name}`, itself adapted from `{base}`,"
    if trained.weights is not None:
        origin += f" with the weights of `{trained.weights.name}`"
    text = f"Adapted from {origin} to {trained.data}{count} with glf adapt."
    if not found:
        return f"{text} Which weights were kept is not known."
    chosen, frozen = found["candidates"][found["chosen"]], found["candidates"]["frozen"]
    by_labels = "knn" in chosen
    if found["share"] == 0:
        how = f" in k-NN on {images.get('val', 0):,} held-out images with labels" if by_labels else ""
        return f"{text} Nothing beat the frozen encoder{how}: these are its weights, unchanged."
    kept = f"{100 * chosen['kept']:.0f} % of the frozen encoder's nearest neighbours are kept"
    average = f"the average of {found['share']:g} adapted and {1 - found['share']:g} frozen weights"
    what = "the adapted weights" if found["share"] == 1 else average
    if found["by"] == "--no-choose":
        what += ", without a comparison with the frozen ones"
    elif by_labels:
        what += f", chosen by k-NN on {images.get('val', 0):,} held-out images with labels"
    else:
        what += ", chosen without labels by the view recall on held-out images"
    accuracy = f", {100 * chosen['knn']:.1f} % (frozen: {100 * frozen['knn']:.1f} %)" if by_labels else ""
    return f"{text} These are {what}{accuracy}. {kept}."


def _name(trained: AdaptConfig) -> str:
    """Name of the adapted encoder. Weights from a local file may be anyone's: such a model has no id."""
    run = _run(trained)
    if run is not None:
        return run.resolve().name
    kind, _, name = trained.encoder.partition(":")
    return (kind == "timm" and trained.weights is None and _hub_id(name)) or name


def _run(trained: AdaptConfig) -> Path | None:
    """The run that was adapted, which may be given by its file of weights; None for a published model."""
    kind, _, path = trained.encoder.partition(":")
    if kind != "run":
        return None
    return Path(path).parent if Path(path).name == BACKBONE else Path(path)


def _adapted(run: Path) -> AdaptConfig | None:
    """The config of a run that was itself adapted, if it can still be read."""
    try:
        config = read_config(run)
    except (OSError, ValueError):
        return None
    return config if isinstance(config, AdaptConfig) else None


def _hub_id(model: str) -> str | None:
    """Id of a timm model on Hugging Face's hub."""
    import timm

    try:
        settings: Any = timm.models.get_pretrained_cfg(model)
    except RuntimeError:  # a tag that this version of timm does not know
        return None
    return getattr(settings, "hf_hub_id", None) or None
