"""ADC by batch size: time next to NT-Xent, memory, fraction of a training step; and LPM by width of the prior."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from glf.align.distance import cosine
from glf.config.training import PretrainConfig
from glf.constrain.adc import ADC, LPM, dcm, lpm, outlier_weight
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.constrain.contrast import log_partition
from glf.data.arrays import array_key
from glf.data.images import ImageSet
from glf.malloc import retain_freed_memory
from glf.nn.backbone import Backbone
from glf.nn.prior import prior_features
from glf.types import Embeddings
from speed.timing import Row, interleaved, processes

SIZES = (256, 512, 1024, 2048, 4096)
WIDTH, PRIOR = 128, 64
CLEAR = Path("/proc/self/clear_refs")  # Linux only


def cases(n: int, width: int = WIDTH) -> dict[str, Callable[[], object]]:
    """Forward and backward pass of each loss on two views of n images."""
    from lightly.loss import NTXentLoss

    torch.manual_seed(0)
    z, prior = torch.randn(2, n, width, requires_grad=True), torch.randn(n, PRIOR)
    adc, neighbours, ntxent = ADC(), NeighbourDistributions(), NTXentLoss(temperature=0.2)

    def without_blocks() -> None:
        e = Embeddings(z=z, prior=prior)
        pre, dat = neighbours.log_pre(e), neighbours.log_dat(e)
        (0.3 * dcm(neighbours.log_cal(e), dat, outlier_weight(entropy(pre))) + 0.3 * lpm(dat, pre)).backward()

    return {
        "ADC": lambda: adc(z[0], z[1], prior=prior).backward(),
        "ADC without blocks": without_blocks,
        "NT-Xent (lightly)": lambda: ntxent(z[0], z[1]).backward(),
        "NT-Xent (ours)": lambda: (cosine(z[0], z[1], 0.2) + log_partition(z.flatten(0, 1), 0.2)).backward(),
    }


def by_time() -> tuple[list[Row], dict[str, dict[int, float]]]:
    curves: dict[str, dict[int, float]] = {}
    rows: list[Row] = []
    with retain_freed_memory():
        for n in SIZES:
            seconds = interleaved(cases(n), repetitions=15 if n <= 512 else 5 if n <= 2048 else 3)
            for name, value in seconds.items():
                curves.setdefault(name, {})[n] = value
            for peer in ("NT-Xent (lightly)", "NT-Xent (ours)"):
                rows.append(
                    Row(
                        part="ADC over both views, forward and backward pass, k = 128",
                        what=f"n = {n:,}",
                        value=f"{1e3 * seconds['ADC']:.1f} against {1e3 * seconds[peer]:.1f} ms",
                        ratio=seconds["ADC"] / seconds[peer],
                        to=f"{peer} over both views",
                        at_most=1.0 if "lightly" in peer else None,
                    )
                )
    return rows, curves


def of_a_step() -> list[Row]:
    """ADC at n = 512 next to the forward and backward pass of a small ResNet over both views."""
    network = Backbone("small_resnet", channels=3, image_size=32).to(memory_format=torch.channels_last)
    x = torch.rand(1024, 3, 32, 32).to(memory_format=torch.channels_last)
    with retain_freed_memory():
        seconds = interleaved({"step": lambda: network(x).sum().backward(), "ADC": cases(512)["ADC"]}, repetitions=5)
    return [
        Row(
            part="ADC next to a small-ResNet step, n = 512",
            what="fraction of the step",
            value=f"{1e3 * seconds['ADC']:.1f} of {1e3 * seconds['step']:.0f} ms",
            ratio=seconds["ADC"] / seconds["step"],
            to="forward and backward pass of 1,024 views",
            at_most=0.03,
        )
    ]


def by_memory() -> tuple[list[Row], dict[str, dict[int, float]]]:
    """Peak memory in addition to the inputs, each in its own process."""
    if not CLEAR.exists():
        print("peak memory is measured on Linux only")
        return [], {}
    sizes = (1024, 2048, 4096, 8192)
    names = ("ADC", "ADC without blocks", "NT-Xent (lightly)")
    calls = {f"{name}@{n}": ["speed.pairs", name, str(n)] for n in sizes for name in names}
    found = processes(calls, repetitions=1)
    curves = {name: {n: found[f"{name}@{n}"][0] for n in sizes} for name in names}
    at = {name: curves[name][8192] / 1e9 for name in names}
    rows = [
        Row(
            part="peak memory in addition to the inputs, n = 8,192, k = 128",
            what="ADC, forward and backward pass, in GB",
            value=f"{at['ADC']:.2f} GB (without blocks {at['ADC without blocks']:.1f}, "
            f"NT-Xent (lightly) {at['NT-Xent (lightly)']:.1f})",
            ratio=round(at["ADC"], 3),
            to="1 GB",
            at_most=1.2,
        )
    ]
    return rows, curves


def by_prior_width() -> tuple[list[Row], dict[str, dict[int, float]]]:
    """LPM at n = 512 with priors of different widths, each reduced and cached as in training."""
    n, term, widths = 512, LPM(), (64, 512, 2048, 8192)
    pixels = np.zeros((1024, 2, 2, 1), np.uint8)
    images = ImageSet(name="", pixels=pixels, targets=np.full(1024, -1), classes=(), key=array_key(pixels))
    z = torch.randn(2, n, WIDTH, requires_grad=True)
    with tempfile.TemporaryDirectory() as folder:
        calls: dict[str, Callable[[], object]] = {}
        for width in widths:
            path = Path(folder) / f"{width}.npy"
            np.save(path, np.random.default_rng(0).normal(size=(1024, width)).astype(np.float32))
            config = PretrainConfig(prior=f"file:{path}", prior_width=PRIOR)
            cached = prior_features(config, images, cache=Path(folder) / "cache")
            features = torch.from_numpy(np.array(cached[:n]))
            calls[str(width)] = lambda features=features: term(z[0], z[1], prior=features).backward()
        with retain_freed_memory():
            seconds = interleaved(calls, repetitions=15)
    curve = {width: seconds[str(width)] for width in widths}
    row = Row(
        part="LPM by width of the prior, n = 512",
        what="prior of 8,192 features, reduced to 64 and cached",
        value=f"{1e3 * curve[8192]:.1f} against {1e3 * curve[64]:.1f} ms per step",
        ratio=curve[8192] / curve[64],
        to="prior of 64 features",
        at_most=1.1,
    )
    return [row], {"LPM": curve}


def _memory(kind: str) -> int:
    """Memory of the process in bytes: now (VmRSS), or its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(kind))


if __name__ == "__main__":
    name, n = sys.argv[1], int(sys.argv[2])
    cases(64)[name]()  # libraries initialise at the first call
    case = cases(n)[name]
    CLEAR.write_text("5")  # reset the peak
    before = _memory("VmRSS")
    case()
    print([_memory("VmHWM") - before])
