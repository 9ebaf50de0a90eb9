"""The model card: architecture, loading code, preprocessing, training data, method and evaluation of a backbone."""

import json
from pathlib import Path
from typing import Any

import glf
from glf.config.base import to_dict
from glf.config.training import AdaptConfig, PretrainConfig, ResolvedPretrainConfig
from glf.exporting.base_model import adaptation
from glf.exporting.card_data import header
from glf.exporting.formats import Exporter
from glf.exporting.loading_code import LoadingCode
from glf.exporting.preprocess import Preprocess
from glf.methods import method_of
from glf.nn.backbone import Backbone
from glf.result import read_result
from glf.rundir import read_config
from glf.runfiles import CONFIG, RESULT
from glf.ui import counted

FILES = "<!-- files written by glf export: "  # before their list, by which a later export knows what it may replace
HUB_CODE = """\
import timm

model = timm.create_model("hf-hub:NAME", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"""
LICENCE = "<!-- fill in: your licence, and that of the images -->"


def model_card(
    run: Path,
    exporter: Exporter,
    backbone: Backbone,
    preprocess: Preprocess,
    loading: LoadingCode,
    files: tuple[str, ...],
    difference: float,
    licence: str | None = None,
    repository: str | None = None,
) -> str:
    """Markdown with a header for Hugging Face's hub. The exported file is the first of ``files``.

    ``repository`` is the name on the hub that the files get, if they are for it.
    """
    name = files[0]
    content = read_result(run) if (run / RESULT).is_file() else {}
    trained = read_config(run) if (run / CONFIG).is_file() else None
    adapted = trained if isinstance(trained, AdaptConfig) else None
    how = f"adapted to {Path(adapted.data).name}" if adapted else "trained without labels"
    parameters = sum(p.numel() for p in backbone.parameters())
    parts = [
        header(exporter.library, content, trained, licence, repository),
        f"# {backbone.name}, {how}",
        f"{backbone.width} features per image; {parameters:,} parameters. Written by glf {glf.__version__}"
        f" as `{name}` ({exporter.name}).",
        "## Licence",
        LICENCE
        if licence is None
        else f"Of the weights: {licence}. The images that they were trained on have their own.",
        "## How to load it",
        *_from_hub(repository),
        "Without glf, in the folder of this file. The features differ from those of the training run by at most"
        f" {difference:.1e}, relative to the largest feature.",
        f"```python\n{loading.text(name)}\n```",
    ]
    if loading.folder_code and name == exporter.filename:
        parts += ["Or, with the preprocessing, from this folder:", f"```python\n{loading.folder_code}\n```"]
    steps = [f"- {key.replace('_', ' ')}: {value}" for key, value in preprocess.metadata().items()]
    if exporter.normalises:
        steps.append("- the exported model normalises by mean and std itself: give it values from 0 to 1")
    square = f"Photos that are not square:\n\n```python\n{preprocess.code()}\n```"
    parts += ["## Preprocessing", "\n".join(steps), square, *_training(content, trained), "## Evaluation"]
    listed = json.dumps(files).replace(">", "\\u003e")  # a name cannot end the comment
    parts += [_evaluation(content.get("evaluation"), run), f"{FILES}{listed} -->"]
    return "\n\n".join(parts) + "\n"


def _from_hub(repository: str | None) -> list[str]:
    if repository is None:
        return []
    code = HUB_CODE.replace("NAME", repository)
    return ["With timm, from the hub, with the preprocessing:", f"```python\n{code}\n```"]


def listed_files(card: Path) -> tuple[str, ...]:
    """Names of the files that an earlier export wrote with this card; none if it is not a card of ours."""
    try:
        _, found, rest = card.read_text(encoding="utf-8").rpartition(FILES)
        names = json.loads(rest.partition(" -->")[0]) if found else []
    except (OSError, ValueError):
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _training(content: dict[str, Any], trained: ResolvedPretrainConfig | None) -> list[str]:
    if trained is None:
        return ["## Training", "Unknown: the file was exported without its run directory."]
    data = content.get("data", {})
    images = f": {data['train']:,} images, {data['skipped']:,} files skipped" if data else ""
    findings = content.get("doctor")
    health = "" if findings is None else "; no problems found" if not findings else "; problems: "
    health += ", ".join(finding["name"] for finding in findings or ())
    command = content.get("command", "")
    if not command.startswith("glf "):
        default = to_dict(AdaptConfig() if isinstance(trained, AdaptConfig) else PretrainConfig())
        given = {key: value for key, value in to_dict(trained).items() if value != default[key]}
        command = f"Called from Python with these options: `{given}`"
    else:
        command = f"    {command}"
    base = ["## Base model", adaptation(trained, content)] if isinstance(trained, AdaptConfig) else []
    return [
        *base,
        "## Data",
        f"{trained.data}{images}. Labels were not used for training, unless the method is supervised.",
        "## Method",
        f"`{trained.method}`, {counted(trained.epochs, 'epoch')}, batch size {trained.batch_size},"
        f" seed {trained.seed}{health}."
        " The aligning and the constraining terms of its loss:",
        _method(trained),
        "## Command",
        command,
    ]


def _method(trained: PretrainConfig) -> str:
    method = method_of(trained)
    objective = method.build(**trained.options)
    lines = [f"| {term.role} | {weight:g} | {term.name} | `{term.formula}` |" for weight, term in objective.parts]
    lines += [f"| transform | | | {step.formula} |" for step in objective.transforms]
    lines += [f"| architecture | | | {method.architecture} |"] if method.architecture else []
    return "\n".join(["| part | weight | term | formula |", "|---|---|---|---|", *lines, "", f"Paper: {method.paper}"])


def _evaluation(evaluation: dict[str, Any] | None, run: Path) -> str:
    if not evaluation:
        return f"Not evaluated yet: run `glf evaluate {run}`, then export again."

    def shown(value: float | None, percent: bool) -> str:
        return "" if value is None else f"{100 * value:.1f} %" if percent else f"{value:.4g}"

    columns = list(evaluation["rows"])
    lines = [f"| metric | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for key, protocol in evaluation["protocols"].items():
        values = [shown(evaluation["rows"][column].get(key), key in evaluation["percent"]) for column in columns]
        lines.append(f"| {protocol} | {' | '.join(values)} |")
    about = f"{evaluation['data']}, {evaluation['split']}: {evaluation['test']:,} test images"
    return f"{about}, {evaluation['train']:,} training images.\n\n" + "\n".join(lines)
