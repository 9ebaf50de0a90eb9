"""The table of a study, from what its runs have stored: the differences, and all of it in Markdown."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from statistics import mean, stdev
from typing import Any, NamedTuple

from glf.reporting.statistics import Paired, paired

METRICS = {"linear": "linear probe", "linear_top5": "linear probe, top-5", "knn5": "5-nn"}
PAPER_COLUMNS = 4  # base, + DCM, + LPM, + ADC
Values = dict[int, float]  # by seed, in per cent


def cells(content: dict[str, Any]) -> dict[tuple[str, str, str, str], Values]:
    """Every (data, metric, method, variant) with its seeds."""
    found: dict[tuple[str, str, str, str], Values] = defaultdict(dict)
    for run in content["runs"]:
        for metric in METRICS:
            if metric in run["values"]:
                key = (run["data"], metric, run["method"], run["variant"])
                found[key][run["seed"]] = 100 * run["values"][metric]
    return found


def tables(content: dict[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    """A title and rows for each set of images and metric; the first row is the head.

    Where one method has more variants than the paper's tables have columns, one table has them below each other and
    the metrics side by side.
    """
    found = cells(content)
    for data in content["data"]:
        by_metric = {
            words: _rows(content, found, data, metric)
            for metric, words in METRICS.items()
            if metric != "linear_top5" or any(key[:2] == (data, metric) for key in found)  # where classes are many
        }
        if len(content["methods"]) == 1 and len(content["variants"]) > PAPER_COLUMNS:
            yield data, _turned(by_metric)
        else:
            yield from ((f"{data}, {words}", rows) for words, rows in by_metric.items())


def _rows(
    content: dict[str, Any], found: Mapping[tuple[str, str, str, str], Values], data: str, metric: str
) -> list[list[str]]:
    """The head, the references, and a row for each method."""
    others = [name for name in content["variants"] if name != content["base"]]
    versus = content.get("versus", {})
    rows = [["", content["base"], *(f"+ {name}" for name in others)]]
    rows[0] += [f"{one} over {other}" for one, other in versus.items()]
    for name, seeds in content.get("references", {}).get(data, {}).items():
        values = {int(seed): 100 * row[metric] for seed, row in seeds.items() if metric in row}
        rows.append([f"({name})", spread(values), *("" for _ in [*others, *versus])])
    for method in content["methods"]:
        of = {name: found.get((data, metric, method, name), {}) for name in content["variants"]}
        row = [difference(of[content["base"]], of[name]) for name in others]
        row += [gain(of[other], of[one]) for one, other in versus.items()]
        rows.append([method, spread(of[content["base"]]), *row])
    return rows


def _turned(by_metric: Mapping[str, list[list[str]]]) -> list[list[str]]:
    """The only method's tables in one: what stood in their heads stands in front."""
    every = list(by_metric.values())
    head, *references, method = every[0]
    rows = [[method[0], *by_metric]]
    rows += [[row[0], *(one[at][1] for one in every)] for at, row in enumerate(references, 1)]
    return rows + [[name, *(one[-1][at] for one in every)] for at, name in enumerate(head) if at]


class Delta(NamedTuple):
    """A variant against the base or another: by how much it differs, over the seeds that both have."""

    data: str
    metric: str
    method: str
    variant: str
    mean: float  # of the variant
    found: Paired


def deltas(content: dict[str, Any], versus: Mapping[str, str] | None = None) -> list[Delta]:
    """Every difference to the base that there is, in the order of the tables; or of variants to others."""
    found, base = cells(content), content["base"]
    if versus is None:
        versus = {name: base for name in content["variants"] if name != base}
    every = []
    for data, metric, method, (variant, other) in product(content["data"], METRICS, content["methods"], versus.items()):
        ours, theirs = found.get((data, metric, method, variant), {}), found.get((data, metric, method, other), {})
        if seeds := sorted(ours.keys() & theirs.keys()):
            values = [ours[seed] for seed in seeds]
            between = paired([theirs[seed] for seed in seeds], values)
            every.append(Delta(data, metric, method, variant, mean(values), between))
    return every


def spread(values: Values) -> str:
    """Mean and standard deviation over seeds.

    >>> spread({0: 50.0, 1: 52.0})
    '51.0 ± 1.4 (2)'
    """
    if not values:
        return "-"
    found = list(values.values())
    deviation = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
    return f"{mean(found):.1f}{deviation} ({len(found)})"


def difference(base: Values, other: Values) -> str:
    """The mean, and what it is more than the base's over the seeds that both have: with its interval, or "not shown".

    >>> difference({0: 50.0, 1: 52.0, 2: 51.0}, {0: 51.0, 1: 53.2, 2: 51.9})
    '52.0, +1.03 [0.65, 1.41] (3)'
    >>> difference({0: 50.0, 1: 52.0, 2: 51.0}, {0: 51.0, 1: 52.0, 2: 51.0})
    '51.3, +0.33, not shown [-1.10, 1.77] (3)'
    """
    seeds = base.keys() & other.keys()
    return f"{mean(other[seed] for seed in seeds):.1f}, {gain(base, other)}" if seeds else "-"


def gain(base: Values, other: Values) -> str:
    """The mean difference over the seeds that both have.

    >>> gain({0: 50.0, 1: 52.0, 2: 51.0}, {0: 51.0, 1: 53.2, 2: 51.9})
    '+1.03 [0.65, 1.41] (3)'
    """
    seeds = sorted(base.keys() & other.keys())
    if not seeds:
        return "-"
    found = paired([base[seed] for seed in seeds], [other[seed] for seed in seeds])
    interval = "" if math.isinf(found.low) else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.mean:+.2f}{'' if found.shown else ', not shown'}{interval} ({found.pairs})"


def markdown(content: dict[str, Any]) -> str:
    """The whole study as Markdown: what was asked, what was found, where and how."""
    text = [f"## {content['title']}", ""]
    text += [f"{content['finding']}", ""] if content.get("finding") else []
    for title, rows in tables(content):
        text += [f"**{title}**", "", *lines(rows), ""]
    text += [about(content), ""]
    text += [f"- failed: {name}: {why}" for name, why in content["failed"].items()]
    return "\n".join(text).rstrip() + "\n"


def lines(rows: list[list[str]]) -> list[str]:
    """A table's lines in Markdown; the first row is the head."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in rows)
    return [head, "|" + "---|" * len(rows[0]), *body]


def about(content: dict[str, Any]) -> str:
    """How to read it, and where it comes from."""
    machines = dict.fromkeys(_machine(run["machine"]) for run in content["runs"]) or [_machine(content["machine"])]
    return (
        "Mean ± standard deviation (seeds); behind a comma the mean difference to the base over the seeds that both"
        " have, which share initial weights, batches and augmentations, with its 95 % t-interval. An interval that"
        " includes zero, or fewer than three pairs, show nothing."
        f" `{content['command']}`; {' and '.join(machines)}; torch {content['versions']['torch']}."
        f"{''.join(_judged(data, how) for data, how in content['evaluated'].items())}"
    )


def _machine(machine: dict[str, Any]) -> str:
    return f"{machine['processor']}, {machine['cores']} cores"


def _judged(data: str, how: dict[str, Any]) -> str:
    words = ", ".join(how["protocols"][name] for name in METRICS if name in how["protocols"])
    return f" {data}: {words}; {how['test']:,} images of the {how['split']} split, {how['train']:,} to learn from."
