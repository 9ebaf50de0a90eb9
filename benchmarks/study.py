"""Run a study of benchmarks/studies at its tiny scale, store what it found, and write the pages anew.

What is done is not done again: start it as often as you like. Runs lie in runs/<study>; what another study has run with
the same settings is copied from there.

    make study STUDY=headline IMAGES=cifar10.tar
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import pages

from glf import result
from glf.compare.compare import conduct
from glf.compare.runs import judged, made_otherwise
from glf.compare.study import Study, from_file

RUNS = Path("runs")


def copy_known(study: Study, out: Path) -> None:
    """Runs of other studies that this one asks for too, judged in the same way."""
    known = [path.parent for path in RUNS.glob(f"*/*/*/*/*/{result.FILE}") if not path.is_relative_to(out)]
    for cell in study.cells():
        place, config = out / cell.place, study.config(cell)
        if not place.exists():
            same = (run for run in known if judged(study, run) and not made_otherwise(run, config))
            if run := next(same, None):
                shutil.copytree(run, place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=sorted(path.stem for path in pages.STUDIES.glob("*.toml")))
    parser.add_argument("--images", help="the study's images, as for glf pretrain; its own when not given")
    parser.add_argument("--seeds", type=int, help="only so many, for a look")
    parser.add_argument("--jobs", type=int, help="runs at once; as many as the machine bears when not given")
    options = parser.parse_args()
    study = from_file(pages.STUDIES / f"{options.study}.toml", "tiny")
    if options.images:
        study = replace(study, data=(options.images,))
    if options.seeds:
        study = replace(study, seeds=options.seeds)
    out = RUNS / options.study
    copy_known(study, out)
    pages.store(options.study, conduct(study, out, options.jobs))


if __name__ == "__main__":
    main()
