"""Run a study of benchmarks/studies at its tiny or night scale, store its results and update the pages.

Runs stored in benchmarks/results are not repeated, whichever study and machine made them, so the command can be stopped
and started again. Unfinished runs are in runs/<study>. --again repeats all stored runs; --here repeats those of other
kinds of machine, so that pairs share their rounding, too.

    make study STUDY=headline IMAGES=cifar10.tar
"""

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pages

from glf.comparison.conduct import conduct
from glf.result import provenance

RUNS = Path("runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=sorted(path.stem for path in pages.STUDIES.glob("*.toml")))
    parser.add_argument(
        "--images", nargs="+", help="images, as for glf pretrain, one for each data set; default: those of the study"
    )
    parser.add_argument("--seeds", type=int, help="number of seeds for a quick look: nothing is stored")
    parser.add_argument("--jobs", type=int, help="simultaneous runs; default: as many as cores and memory allow")
    repeat = parser.add_mutually_exclusive_group()
    repeat.add_argument("--again", action="store_true", help="repeat all stored runs")
    repeat.add_argument("--here", action="store_true", help="repeat the stored runs of other kinds of machine")
    options = parser.parse_args()
    study = pages.study_of(options.study)
    if options.images:
        study = replace(study, data=tuple(options.images))
    machine = provenance()["machine"] if options.here else None
    known = {} if options.again else pages.known_runs(options.study, machine)
    if options.seeds:  # storing it would replace the other seeds
        conduct(replace(study, seeds=options.seeds), RUNS / options.study, options.jobs, known=known)
        return
    command = f"make study STUDY={options.study}" + (
        f" IMAGES={shlex.quote(' '.join(options.images))}" if options.images else ""
    )

    def store(content: dict[str, Any]) -> None:
        pages.store(options.study, {**content, "command": command})

    conduct(study, RUNS / options.study, options.jobs, known=known, store=store)
    pages.write()


if __name__ == "__main__":
    main()
