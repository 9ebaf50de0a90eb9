"""glf export: write a trained backbone in the format of another library, with its preprocessing and a model card.

Nothing is written unless the exported file, loaded with the code of the model card, gives the backbone's features.
"""

import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from glf.config.inference import ExportConfig
from glf.data.decode import SMALL
from glf.exporting.formats import EXPORTERS, Exporter
from glf.exporting.loading_code import LoadingCode
from glf.exporting.model_card import listed_files, model_card
from glf.exporting.preprocess import Preprocess
from glf.files import check_output, explain_full_disk, regular_file, sidecar
from glf.nn.backbone import Backbone
from glf.nn.pretrained import is_library_model
from glf.nn.weights import load_backbone
from glf.rundir import read_config
from glf.runfiles import CONFIG, EXPORT
from glf.ui import say

FEATURE_TOLERANCE = 1e-4  # largest difference of features, relative to the largest feature, that counts as rounding


class Exported(NamedTuple):
    """The written files."""

    file: Path
    card: Path
    difference: float  # largest difference to the features of the run, relative to the largest
    loading: LoadingCode


def export(config: ExportConfig, console: Console | None = None) -> Exported:
    """Write the exported file and its model card, if the file gives the features of the run."""
    done = write_export(config)
    lines = [
        f"written   {done.file} and its model card {done.card}",
        f"checked   its features differ by at most {done.difference:.1e} from those of {config.run}",
        "load it without glf:",
        "",
        *(f"    {line}".rstrip() for line in done.loading.text(done.file).split("\n")),
    ]
    say(console or Console(), *lines)
    return done


def write_export(config: ExportConfig, repository: str | None = None) -> Exported:
    """Check and write the files, without a word. ``repository`` is the name that they get on Hugging Face's hub."""
    exporter = EXPORTERS[config.format]
    folder, name, card_name = _destination(config, exporter)
    missing = [package for package in exporter.packages if find_spec(package) is None]
    if missing:
        raise ValueError(f"--format {exporter.name} needs {', '.join(missing)}: pip install 'glf[{exporter.name}]'")
    if is_library_model(str(config.run)):
        raise ValueError(f"{config.run} is already a model of another library; glf export takes a run directory")
    earlier = listed_files(folder / card_name)
    files = (name, *exporter.beside(name))
    for one in files:
        check_output(folder / one, lambda path: path.name in earlier)
    check_output(folder / card_name, lambda _: bool(earlier))
    backbone = load_backbone(config.run).eval()
    loading = exporter.loading_code(backbone)
    preprocess = Preprocess.of(backbone, margin=_has_margin(config.run, backbone))
    with explain_full_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as temporary:
            written = Path(temporary)
            exporter.write(written / name, backbone, loading, preprocess)
            difference = check_export(loading.run(written / name), backbone, exporter)
            kept = [one for one in earlier if (folder / one).is_file() and one not in files]
            listed, about = (*files, *kept), (config.license, repository)
            card = model_card(config.run, exporter, backbone, preprocess, loading, listed, difference, *about)
            (written / card_name).write_text(card, encoding="utf-8")
            for file in sorted(written.iterdir(), key=lambda file: file.name == name):  # the weights last
                os.replace(file, regular_file(folder / file.name))
    return Exported(folder / name, folder / card_name, difference, loading)


def check_export(model: Callable[..., Any], backbone: Backbone, exporter: Exporter) -> float:
    """Return the largest relative difference of the loaded model's features to the backbone's."""
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for count in (1, 3):  # the file must work for any batch size
        x = torch.rand(count, backbone.channels, backbone.image_size, backbone.image_size, generator=generator)
        with torch.no_grad():
            ours = backbone(x)
            theirs = model(x.numpy() if exporter.normalises else (x - backbone.mean) / backbone.std)
        difference = np.abs(np.asarray(theirs) - ours.numpy()).max() / max(1.0, float(ours.abs().max()))
        largest = max(largest, float(difference))
    if not largest <= FEATURE_TOLERANCE:
        raise ValueError(
            f"the {exporter.name} file would give other features than {backbone.name} (difference {largest:.1e}):"
            f" nothing was written; use --format {'safetensors' if exporter.name == 'onnx' else 'onnx'}"
        )
    return largest


def _destination(config: ExportConfig, exporter: Exporter) -> tuple[Path, str, str]:
    """The folder, the name of the exported file, and the name of the model card."""
    if config.out is None or (not config.out.suffix and not config.out.is_file()) or config.out.is_dir():
        run = config.run if config.run.is_dir() else config.run.parent
        return config.out or run / EXPORT / exporter.name, exporter.filename, "README.md"
    suffix = Path(exporter.filename).suffix
    if config.out.suffix != suffix:
        raise ValueError(f"--out {config.out} must end with {suffix}, or be a folder")
    return config.out.parent, config.out.name, sidecar(config.out, "md").name


def _has_margin(run: Path, backbone: Backbone) -> bool:
    """Whether the training images were stored with a margin: all but small images that kept their own size."""
    image_size = read_config(run).image_size if (run / CONFIG).is_file() else backbone.image_size
    return image_size is not None or backbone.image_size > SMALL
