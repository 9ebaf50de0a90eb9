"""The model card: what a backbone is, what it was trained on, what it reaches, and how to load it."""

from pathlib import Path
from typing import Any

import glf
from glf import result
from glf.config.base import to_dict
from glf.config.inference import ExportConfig
from glf.config.training import PretrainConfig
from glf.exporting.preprocess import Preprocess
from glf.methods import parse
from glf.nn.backbone import Backbone
from glf.rundir import CONFIG, saved_config

FILL = "<!-- fill in: your licence, and that of the images -->"


def card(
    config: ExportConfig, backbone: Backbone, preprocess: Preprocess, code: str, name: str, difference: float
) -> str:
    """Markdown, with the front matter of Hugging Face's hub."""
    content = result.read(config.run) if (config.run / result.FILE).is_file() else {}
    trained = saved_config(config.run) if (config.run / CONFIG).is_file() else None
    parameters = sum(p.numel() for p in backbone.parameters())
    library = {"timm": "timm", "onnx": "onnx"}.get(config.format, "pytorch")
    parts = [
        f"---\nlibrary_name: {library}\npipeline_tag: image-feature-extraction\nlicense: unknown # fill in\n---",
        f"# {backbone.name}, trained without labels",
        f"{backbone.width} features of an image; {parameters:,} parameters. Written by glf {glf.__version__}"
        f" as `{name}` ({config.format}).",
        "## Licence",
        FILL,
        "## How to load it",
        f"Without glf, from the folder of this file. The features differ by at most {difference:.1e}, relative to the"
        " largest, from those of the run.",
        f"```python\n{code}\n```",
        *_transform(config, name),
        "## Preprocessing",
        _preprocessing(preprocess, config),
        *_training(content, trained),
        "## Numbers",
        _numbers(content, config.run),
    ]
    return "\n\n".join(parts) + "\n"


def _transform(config: ExportConfig, name: str) -> list[str]:
    if config.format != "timm" or name != "model.safetensors":
        return []
    return [
        "Or, with the preprocessing, by the name of this folder:",
        "```python\nimport timm\n\n"
        'model = timm.create_model("local-dir:.", pretrained=True).eval()\n'
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))\n```",
    ]


def _preprocessing(preprocess: Preprocess, config: ExportConfig) -> str:
    lines = [f"- {key.replace('_', ' ')}: {value}" for key, value in preprocess.metadata().items()]
    if config.format == "onnx":
        lines.append("- mean and std are inside the graph: give it values from 0 to 1")
    return "\n".join(lines)


def _training(content: dict[str, Any], trained: PretrainConfig | None) -> list[str]:
    if trained is None:
        return ["## Training", "Not known: the file was exported without its run."]
    data = content.get("data", {})
    images = f": {data['train']:,} images, {data['skipped']:,} files skipped" if data else ""
    doctor = content.get("doctor")
    health = "" if doctor is None else "; healthy" if not doctor else f"; {', '.join(f['name'] for f in doctor)}"
    return [
        "## Data",
        f"{trained.data}{images}. Labels were not used for training, unless the method is supervised.",
        "## Method",
        f"`{trained.method}`, {trained.epochs} epochs of batches of {trained.batch_size}, seed {trained.seed}{health}."
        " What it pulls together, and what keeps that from collapsing:",
        _method(trained),
        "## Command",
        _command(content.get("command", ""), trained),
    ]


def _method(trained: PretrainConfig) -> str:
    method = parse(trained.method, trained.adc)
    objective = method.build(**trained.options)
    lines = [f"| {term.role} | {weight:g} | {term.name} | `{term.formula}` |" for weight, term in objective.parts]
    lines += [f"| map | | | {step.formula} |" for step in objective.transforms]
    lines += [f"| architecture | | | {method.architecture} |"] if method.architecture else []
    return "\n".join(["| part | weight | term | formula |", "|---|---|---|---|", *lines, "", f"Paper: {method.paper}"])


def _command(command: str, trained: PretrainConfig) -> str:
    if command.startswith("glf "):
        return f"    {command}"
    default = to_dict(PretrainConfig())
    given = {key: value for key, value in to_dict(trained).items() if value != default[key]}
    return f"Called from Python, with these settings beside the defaults: `{given}`"


def _numbers(content: dict[str, Any], run: Path) -> str:
    found = content.get("evaluation")
    if not found:
        return f"Not judged yet: `glf evaluate {run}`, then export again."
    columns = list(found["rows"])
    lines = [f"| measure | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for key, words in found["protocols"].items():
        values = [_shown(found["rows"][column].get(key), key in found["percent"]) for column in columns]
        lines.append(f"| {words} | {' | '.join(values)} |")
    about = f"{found['data']}, {found['split']}: {found['test']:,} images, learnt from {found['train']:,}."
    return f"{about}\n\n" + "\n".join(lines)


def _shown(value: float | None, percent: bool) -> str:
    return "" if value is None else f"{100 * value:.1f} %" if percent else f"{value:.4g}"
