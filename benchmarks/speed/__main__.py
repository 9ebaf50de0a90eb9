"""Measure the speed of everything but the backbone, next to peers and limits, in one run.

Cost: about 25 minutes on two idle cores. Any images will do: the ratios are the result, the values depend on the
machine. Writes benchmarks/results/speed.json, speed.svg and benchmarks/SPEED.md.

    make bench
    make bench IMAGES=cifar10 PHOTOS=my/photos
    make bench PARTS="loops pairs"    # measure only these again
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from glf.result import provenance
from speed import adaptation, augmentation, evaluation, loops, pairs, pictures, recomputation
from speed.curves import draw
from speed.timing import ROOT, Row

OUT = ROOT / "benchmarks" / "results" / "speed.json"
PAGE = ROOT / "benchmarks" / "SPEED.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", default="fashion-mini", help="32 px images: name or path, as for glf pretrain")
    parser.add_argument("--photos", help="folder or .tar of photos; default: bundled images at 320 px")
    parser.add_argument(
        "--only",
        nargs="*",
        help="measure only these parts, and keep the stored results of the others",
    )
    options = parser.parse_args()
    arguments = [_resolved(options.images), _resolved(options.photos)]
    # The ratios of a part are from one run; its time is stored, too.
    found: dict[str, Any] = json.loads(OUT.read_text()) if options.only else {"parts": {}, "curves": {}, "times": {}}
    with tempfile.TemporaryDirectory() as place:
        for name, part in parts(*arguments, Path(place)).items():
            if options.only and name not in options.only:
                continue
            rows, curves = part()
            show(rows)
            found["parts"][name] = [row.to_dict() for row in rows]
            found["times"][name] = provenance()["time"]
            found["curves"] |= curves
    about = {"images": Path(options.images).name, "photos": Path(options.photos or "embedded").name}
    how = f"make bench IMAGES={about['images']} PHOTOS={about['photos']}" if options.photos else "make bench"
    found |= {**about, **provenance(), "command": how}
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    draw(found["curves"], OUT.with_suffix(".svg"))
    PAGE.write_text(page(found))
    missed = [row for rows in found["parts"].values() for row in rows if row["holds"] is False]
    print(
        f"\n{len(missed)} ratios miss their requirement" if missed else "\nall ratios meet their requirements",
        f"(written to {PAGE})",
    )


def _resolved(data: str | None) -> str | None:
    """Make a path absolute: the parts run in another folder."""
    return str(Path(data).resolve()) if data and Path(data).exists() else data


def parts(images: str, photos: str | None, place: Path) -> dict[str, Any]:
    """The measurements by name."""
    os.environ.setdefault("GLF_CACHE", str(place / "cache"))
    images = pictures.stored(images, place)
    pixels = pictures.small(images)

    def of_pairs() -> tuple[list[Row], dict[str, Any]]:
        time, by_time = pairs.by_time()
        memory, by_memory = pairs.by_memory()
        prior, by_width = pairs.by_prior_width()
        curves = {"seconds by batch": by_time, "bytes by batch": by_memory, "seconds by width of the prior": by_width}
        return [*time, *pairs.of_a_step(), *memory, *prior], curves

    def of_evaluation() -> tuple[list[Row], dict[str, Any]]:
        rows, by_bank = evaluation.neighbours()
        return [*evaluation.features(pixels), *rows, *evaluation.probe()], {"seconds by bank": by_bank}

    def of_photos() -> tuple[list[Row], dict[str, Any]]:
        folder = pictures.photos(photos, place / "photos")
        return augmentation.from_photos(folder, place / "cache"), {}

    return {
        "augmentation": lambda: (
            [*augmentation.at_32(pixels), *augmentation.apart(pixels)],
            {"seconds by images": augmentation.by_images(pixels)},
        ),
        "photos": of_photos,
        "loops": lambda: (loops.compared(images), {}),
        "processes": lambda: (loops.two_processes(images), {}),
        "pairs": of_pairs,
        "evaluation": of_evaluation,
        "probes": lambda: (evaluation.probes_of_photos(), {}),
        "recomputation": lambda: (recomputation.compared(), {}),
        "adaptation": lambda: (adaptation.compared(pictures.photos(photos, place / "photos"), place), {}),
    }


def show(rows: list[Row]) -> None:
    for row in rows:
        mark = {None: " ", True: "+", False: "-"}[row.holds]
        ratio = "" if row.ratio is None else f"{row.ratio:6.2f} x {row.to}"
        print(f"{mark} {row.part}: {row.what}: {ratio}  [{row.value}]", flush=True)


def page(found: dict[str, Any]) -> str:
    """The content of SPEED.md."""
    lines = [
        "# Speed",
        "",
        "Written by `make bench`. Ratios are medians over interleaved repetitions in one run; ratios of training to",
        "the backbone alone are medians over pairs of consecutive steps.",
        f"Machine: {found['machine']['processor']}, {found['machine']['cores']} cores; "
        f"torch {found['versions']['torch']}. Images: {found['images']}; photos: {found['photos']}.",
        "",
        "| | | ratio | to | required | measured | |",
        "|---|---|---:|---|---|---|---|",
    ]
    for row in (row for rows in found["parts"].values() for row in rows):
        required = "" if row["at_least"] is None else f"at least {row['at_least']:g}"
        required = required if row["at_most"] is None else f"at most {row['at_most']:g}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        mark = {None: "", True: "met", False: "**missed**"}[row["holds"]]
        lines.append(
            f"| {row['part']} | {row['what']} | {ratio} | {row['to']} | {required} | {row['value']} | {mark} |"
        )
    return "\n".join([*lines, "", "![How time and memory grow](results/speed.svg)", ""])


if __name__ == "__main__":
    main()
