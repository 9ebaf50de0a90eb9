"""The header of a model card: what Hugging Face's hub reads of a backbone, its licence, its data and its accuracies."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glf.config.training import AdaptConfig, PretrainConfig
from glf.exporting.base_model import base_model

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

# Named data sets by their ids on the hub, as far as they are there; a folder of one's own has none.
HUB_DATASETS = {
    "fashion-mini": "zalando-datasets/fashion_mnist",
    "fashion-scenes": "zalando-datasets/fashion_mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tiny-imagenet": "zh-plus/tiny-imagenet",
    "imagenet100": "ILSVRC/imagenet-1k",
}
UNKNOWN = "unknown"  # the hub's word for a licence that is not stated


def header(
    library: str,
    content: dict[str, Any],
    trained: PretrainConfig | None,
    licence: str | None,
    repository: str | None,
) -> str:
    """YAML for the hub, of a run's config and result.json. ``repository`` is the name that the files get there."""
    from huggingface_hub import ModelCardData

    adapted = trained if isinstance(trained, AdaptConfig) else None
    base = None if adapted is None else base_model(adapted)
    if repository is not None and base is not None and "/" not in base:
        base = None  # the hub takes ids only; the card's text has the name
    methods = [] if trained is None else re.findall(r"\w+", trained.method)
    dataset = None if trained is None else HUB_DATASETS.get(trained.data)
    results = list(_accuracies(content.get("evaluation")))
    related: dict[str, Any] = {"base_model_relation": "finetune"} if base else {}
    data = ModelCardData(
        library_name=library,
        pipeline_tag="image-feature-extraction",
        license=licence or UNKNOWN,
        tags=list(dict.fromkeys([library, "self-supervised-learning", "glf", *methods])),
        datasets=None if dataset is None else [dataset],
        base_model=base,
        eval_results=results or None,
        model_name=(repository or "backbone").rpartition("/")[2] if results else None,
        **related,
    )
    text = str(data.to_yaml())
    return f"---\n{text if licence else text.replace(f'license: {UNKNOWN}', f'license: {UNKNOWN} # fill in')}\n---"


def _accuracies(evaluation: dict[str, Any] | None) -> "Iterator[EvalResult]":
    """The accuracies of the trained backbone: not those of its references, nor of detectors, which have other data."""
    from huggingface_hub import EvalResult

    if not evaluation:
        return
    values = evaluation["rows"].get("trained", {})
    name = evaluation["data"]
    for key, protocol in evaluation["protocols"].items():
        value = values.get(key)
        if value is None or key not in evaluation["percent"] or key.startswith(("boxes_", "masks_")):
            continue
        yield EvalResult(
            task_type="image-classification",
            task_name="Image classification on frozen features",
            dataset_name=name,
            dataset_type=HUB_DATASETS.get(name) or "-".join(re.findall(r"\w+", Path(name).name)) or "images",
            dataset_split=evaluation["split"],
            metric_type="accuracy",
            metric_name=protocol,
            metric_value=value,
        )
