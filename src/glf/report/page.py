"""A plain page: what each run is, the table of its evaluation, the curves of its training."""

import html
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from glf import result
from glf.report.curves import Curve, plot

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #ccc; --soft: #666; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181c; --line: #444; --soft: #a5a5a5; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .8rem; text-align: right; }
td { white-space: nowrap; } th:first-child, td:first-child { text-align: left; } caption { text-align: left; }
th[scope="row"] { font-weight: normal; } .wide { overflow-x: auto; }
@media (max-width: 40rem) { th, td { padding: .35rem .4rem; } }
figure { display: inline-block; margin: 0 1rem 1rem 0; vertical-align: top; }
figcaption, .soft { color: var(--soft); font-size: .9rem; }
pre { white-space: pre-wrap; background: color-mix(in srgb, var(--ink) 7%, transparent); padding: .6rem; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .axis { stroke: var(--line); }
"""
# One figure per family of metrics: every key with that prefix is a curve in it.
FIGURES = {
    "loss": "loss and its terms (weighted, they add up)",
    "share/": "share of the gradient at z",
    "val/knn": "online kNN on held-out training images",
    "val/rank": "effective rank",
    "entropy/": "entropy of ADC's rows (nats)",
}


def write_report(runs: Path, out: Path) -> int:
    """Write the page about a run, or about every run below a directory; returns how many."""
    found = sorted({path.parent for path in runs.rglob(result.FILE)}) if runs.is_dir() else []
    if not found:
        raise FileNotFoundError(f"no run below {runs} (a run holds {result.FILE})")
    sections = "".join(_section(run) for run in found)
    title = f"glf report: {len(found)} run{'s' if len(found) > 1 else ''}"
    result.write(out, document(title, f"<h1>{_text(title)}</h1>{sections}"))
    return len(found)


def document(title: str, body: str) -> str:
    """A whole page that needs nothing from elsewhere."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )


def _section(run: Path) -> str:
    content = result.read(run)
    data, training = content.get("data", {}), content.get("training", {})
    facts = (
        f"{_text(content.get('method', '?'))} on {_text(data.get('name', '?'))}, {data.get('train', 0):,} images;"
        f" backbone {_text(content.get('backbone', {}).get('name', '?'))};"
        f" {training.get('images_per_second', 0):,.0f} images/s, {training.get('waiting', 0):.1%} of the time waiting"
        f" for data; effective rank {training.get('val/rank', 0):.1f}, spread {training.get('val/spread', 0):.2f}"
    )
    parts = [f"<h2>{_text(run.name)}</h2><p>{facts}</p><pre>{_text(content.get('command', ''))}</pre>"]
    if "evaluation" in content:
        parts.append(_table(content["evaluation"]))
    parts += [_figure(title, curves) for title, curves in _curves(run / "metrics.jsonl").items()]
    machine, versions = content.get("machine", {}), content.get("versions", {})
    used = ", ".join(f"{name} {number}" for name, number in versions.items())
    where = f"{machine.get('processor', '?')}, {machine.get('cores', '?')} cores; {used}"
    parts.append(f'<p class="soft">{_text(where)}</p>')
    return f"<section>{''.join(parts)}</section>"


def _table(evaluation: dict[str, Any]) -> str:
    names = list(evaluation["rows"])
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    lines = []
    for key, words in evaluation["protocols"].items():
        percent = key in evaluation.get("percent", ())
        cells = "".join(f"<td>{_number(evaluation['rows'][name].get(key), percent)}</td>" for name in names)
        lines.append(f'<tr><th scope="row">{_text(words)}</th>{cells}</tr>')
    caption = f"{evaluation['data']}, {evaluation['split']} split: {evaluation['test']:,} images"
    head = f'<tr><th scope="col">protocol</th>{head}</tr>'
    return f'<div class="wide"><table><caption>{_text(caption)}</caption>{head}{"".join(lines)}</table></div>'


def _number(value: float | None, percent: bool) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if percent else f"{value:.2f}"


def _curves(path: Path) -> dict[str, dict[str, Curve]]:
    figures: dict[str, dict[str, Curve]] = {title: defaultdict(list) for title in FIGURES.values()}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            values = json.loads(line)
        except ValueError:  # a line that a kill cut short
            continue
        for key, value in values.items():
            prefix = "loss" if key.startswith(("align/", "constrain/")) else key
            for name, title in FIGURES.items():
                if prefix == name or (name.endswith("/") and prefix.startswith(name)):
                    figures[title][key].append((float(values["step"]), float(value)))
    return {title: curves for title, curves in figures.items() if curves}


def _figure(title: str, curves: dict[str, Curve]) -> str:
    return f"<figure>{plot(title, curves)}<figcaption>{_text(title)}</figcaption></figure>"


def _text(value: object) -> str:
    """Names come from people's files: nothing of them is markup."""
    return html.escape(str(value))
