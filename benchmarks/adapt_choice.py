"""Which weights should glf adapt keep, and with which weight of LPM? Measured on images that no run has seen.

The training split of a set is parted: one part is adapted to, a tenth of it held out as usual; the other is unseen.
For each run, all five candidates (frozen, adapted, three averages) are measured by k-NN (k = 5) on the unseen images,
and each rule of choice by the candidate that it keeps. One setting has a learning rate that is far too high, so that
keeping the frozen weights is sometimes right. The test split is not read.

Results are stored after each run and not repeated. Cost: 15 runs of three minutes with one thread, two at a time.

`earlier` in the results has the candidates of runs with other seeds, after which the rules were changed.

    python benchmarks/adapt_choice.py \\
        --images ucmerced.tar plantvillage_tomato.tar imagenette96.tar cifar10.tar fashion-mini
"""

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pages
import torch

from glf.adaptation.choose import SHARES
from glf.adaptation.run import adapt
from glf.config.adc import AdcOptions
from glf.config.training import AdaptConfig
from glf.data import sources
from glf.data.images import ImageSet, split_held_out, stratified_sample
from glf.measure.knn import knn_predict
from glf.nn.backbone import Backbone
from glf.nn.features import encode_all
from glf.nn.pretrained import load_encoder
from glf.result import provenance, write_file

RESULTS = pages.HERE / "results" / "adapt_choice.json"
ENCODER, SIZE = "timm:tf_efficientnet_lite0", 96
MOST, UNSEEN = 3_000, 0.4  # images of a set at most, and the share of them that no run sees
SETTINGS: dict[str, dict[str, Any]] = {
    "simclr": {"method": "simclr"},
    "simclr+lpm, upsilon 0.3": {"method": "simclr+lpm", "adc": AdcOptions(upsilon=0.3)},
    "simclr, lr 1e-2": {"method": "simclr", "lr": 1e-2},
}


def part(data: str, seed: int, folder: Path) -> tuple[Path, ImageSet]:
    """The images to adapt to, as a file, and the unseen images."""
    images = sources.load_images(data, "train", size=SIZE)
    images = images.select(stratified_sample(images.targets, min(len(images), MOST), seed))
    unseen = stratified_sample(images.targets, int(len(images) * UNSEEN), seed + 100)
    rest = images.select(np.setdiff1d(np.arange(len(images)), unseen))
    path = folder / f"{Path(data).stem}-{seed}.npz"
    np.savez(path, x_train=np.asarray(rest.pixels[:]), y_train=rest.targets)
    return path, images.select(unseen)


def averaged(frozen: Backbone, adapted: dict[str, torch.Tensor], share: float) -> Backbone:
    """The encoder with averaged weights."""
    mixed, own = deepcopy(frozen), frozen.state_dict()
    mixed.load_state_dict(
        {
            name: torch.lerp(value, adapted[name], share) if value.is_floating_point() else value
            for name, value in own.items()
        }
    )
    return mixed


def run(data: str, seed: int, setting: str, folder: Path) -> dict[str, Any]:
    """Adapt once; return each candidate's figures and what each rule keeps."""
    torch.set_num_threads(1)
    path, unseen = part(data, seed, folder)
    out = folder / f"{Path(data).stem}-{seed}-{setting.replace(' ', '_')}"
    config = AdaptConfig(
        encoder=ENCODER, data=str(path), out=out, image_size=SIZE, seed=seed, choose=False, **SETTINGS[setting]
    )
    result = adapt(config)
    images = sources.load_images(str(path), "train")
    train, val = split_held_out(images, config)
    frozen = load_encoder(ENCODER, size=SIZE).eval()
    adapted = load_encoder(f"run:{out}", size=SIZE).state_dict()
    accuracies = []
    for share in SHARES:
        encoder = averaged(frozen, adapted, share)
        bank = encode_all(encoder, images, train, device="cpu", size=SIZE)
        queries = encode_all(encoder, unseen, np.arange(len(unseen)), device="cpu", size=SIZE)
        known, truth = torch.from_numpy(images.targets[train]), torch.from_numpy(unseen.targets)
        accuracies.append(round(float((knn_predict(bank, known, queries, 5) == truth).double().mean()), 4))
    found = result["adaptation"]
    names = list(found["candidates"])
    rows = list(found["candidates"].values())
    keep = {"always adapted": len(SHARES) - 1, **{rule: names.index(name) for rule, name in found["rules"].items()}}
    return {
        "data": data,
        "seed": seed,
        "setting": setting,
        "held out": len(val),
        "unseen": accuracies,
        **{figure: [row[figure] for row in rows] for figure in ("knn", "recall", "kept")},
        "keep": keep,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each rule: how often it keeps the best candidate, one not below frozen, and its mean distances to both."""
    found = {}
    for rule in rows[0]["keep"]:
        kept = np.array([row["unseen"][row["keep"][rule]] for row in rows])
        frozen = np.array([row["unseen"][0] for row in rows])
        best = np.array([max(row["unseen"]) for row in rows])
        found[rule] = {
            "runs": len(rows),
            "best": int((kept == best).sum()),
            "not below frozen": int((kept >= frozen).sum()),
            "below best": round(100 * float((best - kept).mean()), 2),
            "above frozen": round(100 * float((kept - frozen).mean()), 2),
            "worst": round(100 * float((kept - frozen).min()), 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", nargs="+", required=True, help="as for glf adapt")
    parser.add_argument("--seeds", nargs="+", type=int, default=[12])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    done = {(row["data"], row["seed"], row["setting"]) for row in content["rows"]}
    wanted = [(d, s, v) for s in options.seeds for d in options.images for v in SETTINGS if (d, s, v) not in done]
    command = f"python benchmarks/adapt_choice.py --images {' '.join(options.images)}"
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        for row in pool.map(run, *zip(*wanted, strict=True), [Path(folder)] * len(wanted)) if wanted else ():
            content["rows"].append(row)
            print(json.dumps(row), flush=True)
            write_file(RESULTS, json.dumps({**content, **provenance(), "command": command}, indent=1) + "\n")
    for setting in SETTINGS:
        print(setting, json.dumps(summary([row for row in content["rows"] if row["setting"] == setting]), indent=1))
    print("all", json.dumps(summary(content["rows"]), indent=1))


if __name__ == "__main__":
    main()
