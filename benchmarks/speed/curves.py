"""Growth of time and memory, on logarithmic axes: the slope of a line is the exponent."""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

AXES = {
    "seconds by images": ("images in a batch", "seconds"),
    "seconds by batch": ("images in a batch", "seconds"),
    "bytes by batch": ("images in a batch", "bytes above the inputs"),
    "seconds by width of the prior": ("features of the prior", "seconds"),
    "seconds by bank": ("images in the bank", "seconds"),
}


def draw(curves: dict[str, dict[str, dict[object, float]]], path: Path) -> None:
    """One panel per quantity, with the fitted exponent of each line."""
    import numpy as np

    shown = [name for name in AXES if name in curves]
    figure, panels = plt.subplots(1, len(shown), figsize=(4.2 * len(shown), 3.8), squeeze=False)
    for panel, name in zip(panels[0], shown, strict=True):
        for label, points in curves[name].items():
            x, y = np.array([float(str(n)) for n in points]), np.array(list(points.values()))
            power = np.polyfit(np.log(x[-3:]), np.log(y[-3:].clip(1e-12)), 1)[0]
            panel.loglog(x, y, "o-", markersize=3, label=f"{label}: exponent {power:.1f}")
        low, high = panel.get_ylim()
        if high / low < 10:  # small changes should look small
            panel.set_ylim((low * high / 10) ** 0.5, (low * high * 10) ** 0.5)
        panel.set_xticks(x, [f"{value:,.0f}" for value in x], fontsize=7)
        panel.minorticks_off()
        panel.set_title(name, fontsize=10)
        panel.set_xlabel(AXES[name][0], fontsize=9)
        panel.set_ylabel(AXES[name][1], fontsize=9)
        panel.grid(True, which="both", alpha=0.2)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
