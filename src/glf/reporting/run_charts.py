"""Charts of a run: training curves, geometry of the features, entropies, feature map."""

from glf.reporting.chart import Chart, Point, Series, thin_out
from glf.reporting.load import Run

MAX_CURVES = 10


def training_charts(run: Run) -> list[Chart]:
    """Loss, every term, shares of the gradient, entropies, and the online k-NN, rank and spread."""
    terms = [key for key in run.curves if key.startswith(("align/", "constrain/"))]
    charts = [
        _curves(run, "loss", "loss and its terms, which add up to it", ["loss", *terms]),
        *(_curves(run, key.replace("/", "-"), f"{key}, weighted", [key]) for key in terms),
        _curves(run, "gradient-share", "share of the gradient at z", [k for k in run.curves if k.startswith("share/")]),
        _curves(
            run,
            "entropy",
            "entropy of ADC's neighbour distributions, in nats",
            [key for key in run.curves if key.startswith("entropy/")],
        ),
        _curves(
            run,
            "class-mass",
            "share of the same class in ADC's neighbour distributions, held-out training images",
            [key for key in run.curves if key.startswith("val/mass/")],
        ),
        _curves(run, "online", "accuracy on held-out training images", ["val/knn", "val/linear"]),
        _curves(run, "kept", "share of the frozen encoder's neighbours kept", ["val/kept"]),
        _curves(run, "rank", "effective rank of held-out features", ["val/rank"]),
        _curves(run, "spread", "spread of held-out features (0: collapsed to a point)", ["val/spread"]),
    ]
    return [chart for chart in charts if chart.series]


def knn_chart(runs: list[Run]) -> Chart:
    """The online k-NN accuracy of several runs, at most MAX_CURVES."""
    series = [Series(name=run.name, points=thin_out(run.curves.get("val/knn", []))) for run in runs[:MAX_CURVES]]
    title = f"k-NN accuracy on held-out training images{', first ten runs' if len(runs) > MAX_CURVES else ''}"
    return Chart(key="knn", title=title, series=tuple(one for one in series if one.points))


def geometry_charts(run: Run) -> list[Chart]:
    """Spectra of all encoders, and the cosines of image pairs of the same class and of different classes."""
    encoders = run.artifacts.get("columns", {})
    spectra = [
        Series(name=name, points=tuple(Point(i + 1, share) for i, share in enumerate(one["spectrum"]) if share > 1e-6))
        for name, one in encoders.items()
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
    for name, one in encoders.items():
        if "similarity" in one:
            charts.append(_similarity(name, one["similarity"]))
    return [chart for chart in charts if chart.series]


def entropy_chart(run: Run) -> Chart | None:
    """Histogram of the entropies of the prior's neighbour distributions, over all training images."""
    found = run.artifacts.get("outliers")
    if not found:
        return None
    width = found["largest"] / len(found["histogram"])
    points = tuple(Point(round((i + 0.5) * width, 4), count) for i, count in enumerate(found["histogram"]))
    title = f"entropy of each image's neighbour distribution under the prior (at most {found['largest']:.2f})"
    series = (Series(name="", points=points),)
    return Chart(key="outliers", title=title, series=series, kind="steps", x="nats", y="images")


def map_charts(run: Run) -> list[Chart]:
    """The feature maps as charts, for --figures; the page draws them with thumbnails."""
    titles = {"map": "t-SNE of the features", "map_frozen": "t-SNE of the frozen encoder's features"}
    return [_map(run, name, title) for name, title in titles.items() if run.artifacts.get(name)]


def _map(run: Run, name: str, title: str) -> Chart:
    found = run.artifacts["map"]
    dots = list(zip(run.artifacts[name]["points"], found["group"], strict=True))
    series = [
        Series(name=group_name, points=tuple(Point(*place) for place, group in dots if group == i))
        for i, group_name in enumerate(found["groups"])
    ]
    drawn = tuple(one for one in series if one.points)
    return Chart(key=name, title=title, series=drawn, kind="dots", x="")


def _curves(run: Run, key: str, title: str, names: list[str]) -> Chart:
    series = [
        Series(name=name.rpartition("/")[2], points=thin_out(run.curves[name])) for name in names if name in run.curves
    ]
    return Chart(key=key, title=title, series=tuple(one for one in series if one.points))


def _similarity(encoder: str, histograms: dict[str, list[float]]) -> Chart:
    same, different = histograms["same"], histograms["different"]
    used = [i for i in range(len(same)) if same[i] + different[i] > 0]
    centres = {i: round(-1 + (2 * i + 1) / len(same), 6) for i in range(used[0], used[-1] + 1)} if used else {}
    series = tuple(
        Series(name=name, points=tuple(Point(x, shares[i]) for i, x in centres.items()))
        for name, shares in (("different class", different), ("same class", same))
        if used
    )
    title = f"{encoder}: cosine of two images, share of pairs"
    return Chart(key=f"similarity-{encoder}", title=title, series=series, kind="steps", x="cosine")
