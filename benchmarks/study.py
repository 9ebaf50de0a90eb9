"""Run a study of benchmarks/studies at its tiny scale, store what it found, and write the pages anew.

What is stored in benchmarks/results is not done again, whatever study and machine made it: start it as
often as you like. Runs that are under way lie in runs/<study>. --again trusts nothing that was stored, --here only
what a machine like this one has made: pairs then share their rounding too.

    make study STUDY=headline IMAGES=cifar10.tar
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pages

from glf.comparison.conduct import conduct
from glf.comparison.study import from_file
from glf.result import provenance

RUNS = Path("runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=sorted(path.stem for path in pages.STUDIES.glob("*.toml")))
    parser.add_argument("--images", help="the study's images, as for glf pretrain; its own when not given")
    parser.add_argument("--seeds", type=int, help="only so many, for a look: nothing is stored")
    parser.add_argument("--jobs", type=int, help="runs at once; as many as the machine bears when not given")
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument("--again", action="store_true", help="make every run, also those that are stored")
    trust.add_argument("--here", action="store_true", help="make those too that another kind of machine has made")
    options = parser.parse_args()
    study = from_file(pages.STUDIES / f"{options.study}.toml", "tiny")
    if options.images:
        study = replace(study, data=(options.images,))
    machine = provenance()["machine"] if options.here else None
    known = {} if options.again else pages.known_runs(options.study, machine)
    if options.seeds:  # stored, it would take the place of the seeds that are there
        conduct(replace(study, seeds=options.seeds), RUNS / options.study, options.jobs, known=known)
        return
    command = f"make study STUDY={options.study}" + (f" IMAGES={options.images}" if options.images else "")

    def keep(content: dict[str, Any]) -> None:
        pages.store(options.study, {**content, "command": command})

    conduct(study, RUNS / options.study, options.jobs, known=known, keep=keep)
    pages.write()


if __name__ == "__main__":
    main()
