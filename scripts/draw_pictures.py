"""Draws the numbers of make_pictures.py as small SVGs, legible on light and on dark backgrounds."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, GREY = "#2f86c9", "#d9722b", "#199b77", "#7f8791"
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "glf",  # equal pictures are equal files
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    **{
        f"{part}.{kind}": GREY
        for part, kind in [("axes", "edgecolor"), ("axes", "labelcolor"), ("xtick", "color"), ("ytick", "color")]
    },
    "text.color": GREY,
}


def draw(found: dict[str, dict[str, Any]], out: Path) -> None:
    """Write one file per picture."""
    for name, (panels, paint) in PAINTERS.items():
        with plt.rc_context(STYLE):
            figure, axes = plt.subplots(1, panels, figsize=(3.7 * panels, 2.9), layout="constrained", squeeze=False)
            paint(found[name], *axes[0])
            figure.savefig(
                out / f"{name}.svg", transparent=True, metadata={"Date": None, "Creator": None, "Title": name}
            )
            plt.close(figure)


def kernels(n: dict[str, Any], left: Axes, right: Axes) -> None:
    left.plot(n["distance"], n["gaussian 8"], color=BLUE, label="Gaussian")
    left.plot(n["distance"], n["t 8"], color=ORANGE, label="Student-t")
    left.axvline(n["crossover 8"], color=GREY, linestyle=":", label="equally steep")
    left.set(xlabel="squared distance on the sphere", ylabel="log kernel, effective_dim 8")
    for dim, colour in (("8", GREEN), ("16", ORANGE)):
        right.plot(n[f"spread {dim}"], n[f"sharpened {dim}"], color=colour, label=f"effective_dim {dim}")
        right.axvline(n[f"crossover {dim}"], color=colour, linestyle=":")
    right.set(xlabel="mean squared distance of the batch", ylabel="share of anchors that DCM sharpens")
    left.legend()
    right.legend(loc="lower right")


def dirichlet(n: dict[str, Any], left: Axes, right: Axes) -> None:
    for axes, reading, colour, title in (
        (left, "paper", ORANGE, "printed: Dir(alpha)"),
        (right, "calibrated", BLUE, "calibrated: Dir(1 + alpha)"),
    ):
        axes.plot(n["share"], n[reading], color=colour)
        axes.axvline(n["prior"], color=GREY, linestyle=":", label="share under the prior")
        axes.set(xlabel="share of the first neighbour", title=title)
        axes.title.set_color(GREY)
        axes.title.set_fontsize(9)
    left.set_ylabel("log-density, up to a constant")
    left.legend(loc="upper left")


def runaway(n: dict[str, Any], axes: Axes) -> None:
    for name, colour in (("held fixed", ORANGE), ("differentiated", BLUE)):
        axes.plot(n[name], color=colour, label=f"covariance {name}")
    axes.set(xlabel="step", ylabel="root mean square of z", ylim=(0, None))
    axes.legend(loc="upper left")


def entropy(n: dict[str, Any], left: Axes, right: Axes) -> None:
    for name, colour in (("gaussian", BLUE), ("t", ORANGE), ("prior", GREEN)):
        left.plot(n["dim"], n[name], color=colour, marker=".", label=name)
    right.plot(n["dim"], n["lpm"], color=ORANGE, marker=".", label="z uniform on the sphere")
    left.set(xlabel="effective dimension", ylabel="mean entropy (nats)")
    right.set(xlabel="effective_dim", ylabel="LPM", yscale="log")
    right.minorticks_off()
    right.set_yticks([5, 10, 20, 50], ["5", "10", "20", "50"])
    for axes, label in ((left, "uniform: log(n - 1)"), (right, "z collapsed: log(n - 1)")):
        axes.axhline(n["flat"], color=GREY, linestyle=":", label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(n["dim"], [f"{dim:g}" for dim in n["dim"]])
        axes.legend()


PAINTERS: dict[str, tuple[int, Any]] = {
    "kernels": (2, kernels),
    "dirichlet": (2, dirichlet),
    "runaway": (1, runaway),
    "entropy": (2, entropy),
}
