"""The charts of a run: training, and the shape of its features."""

from typing import Any

from glf.reporting.chart import Chart, Point, Series, curve
from glf.reporting.load import Run


def training(run: Run) -> list[Chart]:
    """Every term and its share of the gradient, the probe over time, ranks and entropies."""
    curves = run.curves
    terms = [key for key in curves if key.startswith(("align/", "constrain/"))]
    charts = [_together("loss", "loss, and its terms, which add up to it", run, ["loss", *terms])]
    charts += [_together(key.replace("/", "-"), f"{key}, weighted", run, [key]) for key in terms]
    families = {
        "gradient-share": ("share of the gradient at z", "share/"),
        "entropy": ("entropy of ADC's rows, in nats", "entropy/"),
    }
    charts += [
        _together(key, title, run, [name for name in curves if name.startswith(prefix)])
        for key, (title, prefix) in families.items()
    ]
    charts += [
        _together("knn", "kNN on held-out training images", run, ["val/knn"]),
        _together("rank", "effective rank of held-out features", run, ["val/rank"]),
        _together("spread", "spread of held-out features (0 is a point)", run, ["val/spread"]),
    ]
    return [chart for chart in charts if chart.series]


def _together(key: str, title: str, run: Run, names: list[str]) -> Chart:
    series = [
        Series(name=name.rpartition("/")[2], points=curve(run.curves[name])) for name in names if name in run.curves
    ]
    return Chart(key=key, title=title, series=tuple(one for one in series if one.points))


def shape(run: Run) -> list[Chart]:
    """The spectrum of every column, and how similar images of one and of two classes are."""
    columns: dict[str, Any] = run.artifacts.get("columns", {})
    spectra = [
        Series(name=name, points=tuple(Point(i + 1, share) for i, share in enumerate(one["spectrum"]) if share > 1e-6))
        for name, one in columns.items()
    ]
    charts = [
        Chart(
            key="spectrum",
            title="spectrum: share of the variance along each direction",
            series=tuple(one for one in spectra if one.points),
            x="direction",
            log_x=True,
            log_y=True,
        )
    ]
    for name, one in columns.items():
        if "similarity" in one:
            charts.append(_similarity(name, one["similarity"]))
    return [chart for chart in charts if chart.series]


def _similarity(column: str, found: dict[str, list[float]]) -> Chart:
    bins = len(found["same"])
    used = [i for i in range(bins) if found["same"][i] + found["different"][i] > 0]
    series = tuple(
        Series(
            name=f"{kind} class",
            points=tuple(
                Point(round(-1 + (2 * i + 1) / bins, 6), found[kind][i]) for i in range(used[0], used[-1] + 1)
            ),
        )
        for kind in ("different", "same")
        if used
    )
    words = f"{column}: cosine of two images, share of pairs"
    return Chart(key=f"similarity-{column}", title=words, series=series, kind="steps", x="cosine")


def entropies(run: Run) -> Chart | None:
    """How flat the prior's rows are, over all training images."""
    found = run.artifacts.get("outliers")
    if not found:
        return None
    counts, width = found["histogram"], found["largest"] / len(found["histogram"])
    points = tuple(Point(round((i + 0.5) * width, 4), count) for i, count in enumerate(counts))
    title = f"entropy of each image's row of the prior; the most that there can be is {found['largest']:.2f}"
    return Chart(
        key="outliers", title=title, series=(Series(name="", points=points),), kind="steps", x="nats", y="images"
    )
