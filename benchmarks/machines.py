"""Equal runs on two kinds of machine: how much results differ if only the rounding differs.

Computed from the stored results; `python benchmarks/study.py NAME --here` repeats the runs of other kinds of machine.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import stdev
from typing import Any

from glf.reporting.statistics import paired_difference
from glf.reporting.study_tables import COMPARED_METRICS, markdown_tables, seed_values

TITLE = "The same runs on two kinds of machine"
NOTE = (
    "Equal settings and seeds on two processors: the runs differ by rounding only. Their differences show how much"
    " chance contributes to every pair on this page; with three seeds, much smaller effects cannot be detected."
)


def named(method: str, variant: dict[str, Any]) -> str:
    """The name of a run: its method and the settings of its variant.

    >>> named("simclr", {"constrain": "adc", "nu": 1.0})
    'simclr+adc, nu 1.0'
    """
    changed = [f"{name} {value}" for name, value in variant.items() if name != "constrain"]
    constrained = f"{method}+{variant['constrain']}" if "constrain" in variant else method
    return ", ".join([constrained, *changed])


def repeated(studies: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Runs made by more than one kind of machine, as a comparison with the machines as variants."""
    made: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    names: dict[str, str] = {}  # the shortest of the names that the studies give a run
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


def summary(content: dict[str, Any]) -> str:
    """Mean and standard deviation of the differences over all pairs, for each metric."""
    found, parts = seed_values(content), []
    for wanted, title in COMPARED_METRICS.items():
        base, others = [], []
        for (data, metric, method, processor), values in found.items():
            if metric == wanted and processor != content["base"]:
                shared = found[data, metric, method, content["base"]]
                base += [shared[seed] for seed in values if seed in shared]
                others += [values[seed] for seed in values if seed in shared]
        if len(base) > 1:
            mean, low, high, pairs = paired_difference(base, others)
            std = stdev(b - a for a, b in zip(base, others, strict=True))
            parts.append(
                f"{title} {mean:+.2f} [{low:.2f}, {high:.2f}] over {pairs} pairs, standard deviation {std:.2f}"
            )
    return "; ".join(parts)


def section(studies: Iterable[dict[str, Any]]) -> str:
    """The section of RESULTS.md; empty if all runs were made on one kind of machine."""
    content = repeated(studies)
    if not content["runs"]:
        return ""
    return "\n".join([f"## {TITLE}", "", f"{NOTE} Overall: {summary(content)}.", "", *markdown_tables(content)])
