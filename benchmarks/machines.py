"""The same run on two kinds of machine: what two runs differ by when nothing but their rounding differs.

Read from what is stored: `python benchmarks/study.py NAME --here` makes anew what another kind of machine has made.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import stdev
from typing import Any

from glf.reporting.statistics import paired_difference
from glf.reporting.study_tables import COMPARED_METRICS, markdown_tables, seed_values

TITLE = "The same runs on two kinds of machine"
READ = (
    "The same settings and seed on another processor: two paths that part by rounding alone. What they differ by is the"
    " part of chance in any pair of this page, and effects that are much smaller do not show with three seeds."
)


def named(method: str, variant: dict[str, Any]) -> str:
    """A run by its method and what its variant sets.

    >>> named("simclr", {"constrain": "adc", "nu": 1.0})
    'simclr+adc, nu 1.0'
    """
    changed = [f"{name} {value}" for name, value in variant.items() if name != "constrain"]
    constrained = f"{method}+{variant['constrain']}" if "constrain" in variant else method
    return ", ".join([constrained, *changed])


def twice(studies: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The runs that more than one kind of machine has made, as a comparison whose variants are the machines."""
    made: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    names: dict[str, str] = {}  # of several studies' names for a run, the shortest
    for content in studies:
        for run in content["runs"]:
            name = named(run["method"], content["variants"][run["variant"]])
            names[run["key"]] = min(name, names.get(run["key"], name), key=len)
            made[run["key"]][run["machine"]["processor"]] = run
    runs = [
        {**run, "method": names[key], "variant": processor}
        for key, by_machine in made.items()
        if len(by_machine) > 1
        for processor, run in by_machine.items()
    ]
    processors = sorted({run["variant"] for run in runs})
    return {
        "methods": sorted({run["method"] for run in runs}),
        "data": sorted({run["data"] for run in runs}),
        "variants": {processor: {} for processor in processors},
        "base": next(iter(processors), None),
        "runs": runs,
    }


def apart(content: dict[str, Any]) -> str:
    """For each measure, over all pairs: their mean difference, and how far a single one is from it."""
    found, said = seed_values(content), []
    for wanted, words in COMPARED_METRICS.items():
        base, others = [], []
        for (data, metric, method, processor), values in found.items():
            if metric == wanted and processor != content["base"]:
                shared = found[data, metric, method, content["base"]]
                base += [shared[seed] for seed in values if seed in shared]
                others += [values[seed] for seed in values if seed in shared]
        if len(base) > 1:
            mean, low, high, pairs = paired_difference(base, others)
            deviation = stdev(b - a for a, b in zip(base, others, strict=True))
            said.append(
                f"{words} {mean:+.2f} [{low:.2f}, {high:.2f}] over {pairs} pairs, a single one ± {deviation:.2f}"
            )
    return "; ".join(said)


def section(studies: Iterable[dict[str, Any]]) -> str:
    """For the page of results; empty where every run was made on one kind of machine."""
    content = twice(studies)
    if not content["runs"]:
        return ""
    return "\n".join([f"## {TITLE}", "", f"{READ} In all: {apart(content)}.", "", *markdown_tables(content)])
