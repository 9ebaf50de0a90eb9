"""The sections of a run, from what it is to what it is made of."""

from collections.abc import Callable
from typing import Any

from glf.reporting import galleries, run_charts
from glf.reporting.chart import Chart
from glf.reporting.galleries import Sheets
from glf.reporting.html import Markup, join, tag
from glf.reporting.load import Run
from glf.reporting.run_tables import accuracies, by_class, measures, theorem
from glf.reporting.svg import figure
from glf.reporting.verdict import verdict

Section = tuple[str, str, Markup | None]  # a key, a heading, and what stands below it
NOTES = {
    "map": "Where two dots are close, t-SNE found the images similar; distances between groups, their sizes and"
    " densities say nothing. Point at a dot, or use the arrow keys, to see its image; a name in the legend shows its"
    " class alone.",
    "neighbours": "Test images drawn at random, each with the training images whose features are most similar; below"
    " them the cosine, or in a dashed frame the class where it is another one.",
    "views": "Training images as they are (left), and as the network saw them.",
    "outliers": "Training images that the prior finds about as far from everything, the most likely outliers first."
    " ADC gives their anchors less weight. A strange image is not always a wrong one, and many wrong ones of a kind"
    " stay hidden.",
}


def head(run: Run) -> Markup:
    """The verdict in words, and the chief numbers."""
    mood, word, sentences = verdict(run)
    return join((tag("p", tag("strong", f"{word}. "), " ".join(sentences), class_=f"verdict {mood}"), _tiles(run)))


def sections(run: Run, sheets: Sheets, pictures: bool) -> list[Section]:
    """Everything about a run; what it has nothing to show for is left out."""
    makers: dict[str, tuple[str, Callable[[], Markup | None]]] = {
        "about": ("What it is", lambda: _about(run)),
        "doctor": ("The doctor", lambda: _doctor(run)),
        "evaluation": ("Evaluation", lambda: _maybe(accuracies(run), by_class(run))),
        "training": ("Training", lambda: charts(run_charts.training(run))),
        "geometry": ("Geometry", lambda: _maybe(measures(run), charts(run_charts.shape(run)))),
        "theorem": ("Theorem 1, term by term", lambda: theorem(run)),
        "map": ("Map of the features", lambda: galleries.feature_map(run, sheets, pictures)),
    }
    if pictures:
        makers |= {
            "neighbours": ("Nearest neighbours", lambda: galleries.neighbours(run, sheets)),
            "views": (f"Augmented views{_recipe(run)}", lambda: galleries.views(run, sheets)),
            "outliers": (f"Likely outliers, by H(P_pre){_prior(run)}", lambda: galleries.outliers(run, sheets)),
        }
    found = [(key, heading, make()) for key, (heading, make) in makers.items()]
    return [
        (key, heading, join((tag("p", NOTES[key], class_="soft"), body)) if key in NOTES else body)
        for key, heading, body in found
        if body
    ]


def charts(drawn: list[Chart]) -> Markup | None:
    """Small charts side by side."""
    return tag("div", *(figure(chart) for chart in drawn), class_="charts") if drawn else None


def _maybe(*parts: Markup | None) -> Markup | None:
    return join(parts) if any(parts) else None


def _recipe(run: Run) -> str:
    return f" ({run.artifacts['views']['recipe']})" if "views" in run.artifacts else ""


def _prior(run: Run) -> str:
    return f" of {run.artifacts['outliers']['prior']}" if "outliers" in run.artifacts else ""


def _tiles(run: Run) -> Markup | None:
    """The numbers that one looks for first, with those of the references below them."""
    shown = {"knn5": "5-nn", "linear": "linear probe", "between": "variance between classes", "rank": "effective rank"}
    percent = {"knn5", "linear", "between"}
    tiles = []
    for key, words in shown.items():
        value = run.value(key)
        if value is None:
            continue
        others = [(name, run.value(key, name)) for name in run.evaluation["rows"] if name != "trained"]
        beside = " · ".join(f"{name} {_number(other, key in percent)}" for name, other in others if other is not None)
        number = tag("span", _number(value, key in percent), class_="number")
        tiles.append(tag("li", number, tag("span", words), tag("small", beside)))
    return tag("ul", *tiles, class_="tiles") if tiles else None


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else f"{value:.1f}"


def _about(run: Run) -> Markup:
    """Method, data, backbone, training and the command, as a list of terms."""
    content = run.content
    data, training, backbone = (content.get(key, {}) for key in ("data", "training", "backbone"))
    config, machine = content.get("config", {}), content.get("machine", {})
    facts: dict[str, str | Markup | None] = {
        "method": tag("span", str(content.get("method", "")), tag("br"), _objective(run))
        if "method" in content
        else None,
        "data": _told(
            data.get("name"),
            ("{:,} images to train on", data.get("train")),
            ("{:,} held out", data.get("val")),
            ("{:,} files skipped", data.get("skipped") or None),
            ("{} classes", len(data["classes"]) if data.get("classes") else None),
        ),
        "backbone": _told(backbone.get("name"), ("{:,} features", backbone.get("width"))),
        "training": _told(
            None,
            ("{} epochs", config.get("epochs")),
            ("batches of {}", config.get("batch_size")),
            ("learning rate {:g}", training.get("lr")),
            ("views {}", config.get("views")),
            ("prior {}", config.get("prior")),
            ("seed {}", config.get("seed")),
            ("{:,.0f} images/s", training.get("images_per_second")),
        ),
        "machine": _told(
            machine.get("processor"),
            ("{} cores", machine.get("cores")),
            *((f"{name} {{}}", number) for name, number in content.get("versions", {}).items()),
        ),
        "made": _told(content.get("time")),
        "command": tag("code", str(content["command"])) if content.get("command") else None,
    }
    said = [(tag("dt", name), tag("dd", text)) for name, text in facts.items() if text]
    return tag("dl", *(part for pair in said for part in pair), class_="facts")


def _objective(run: Run) -> Markup:
    """Align plus constrain, with weights and formulas; of an older run the names of its terms alone."""
    found: dict[str, Any] = run.content.get("objective") or {
        role: [{"name": key.partition("/")[2]} for key in run.curves if key.startswith(f"{role}/")]
        for role in ("align", "constrain")
    }
    parts = []
    for role in ("align", "constrain"):
        terms = [_term(one) for one in found.get(role, [])]
        beside = [f"map: {one['formula']}" for one in found.get("maps", [])] if role == "constrain" else []
        beside += (
            [f"architecture: {found['architecture']}"] if role == "constrain" and found.get("architecture") else []
        )
        parts.append(tag("span", tag("b", role), " ", " + ".join([*terms, *beside]) or "none", class_="role"))
    return join(parts)


def _term(one: dict[str, Any]) -> str:
    weight = f"{one['weight']:g} " if one.get("weight", 1) != 1 else ""
    formula = f" ({one['formula']})" if one.get("formula") else ""
    return f"{weight}{one['name']}{formula}"


def _told(first: object, *parts: tuple[str, Any]) -> str:
    words = [str(first)] if first else []
    return ", ".join(words + [text.format(value) for text, value in parts if value is not None])


def _doctor(run: Run) -> Markup | None:
    findings = run.content.get("doctor")
    if findings is None:
        return None
    if not findings:
        return tag("p", "Healthy: no collapse, no lost scale, no dead or dominating term, no starvation.")
    return join(
        tag(
            "div",
            tag("h4", f"{one['name']} since step {one['since']}"),
            tag("dl", *(part for key, words in _SAID.items() for part in (tag("dt", words), tag("dd", str(one[key]))))),
            class_="finding",
        )
        for one in findings
    )


_SAID = {"evidence": "seen", "why": "usual causes", "advice": "try"}
