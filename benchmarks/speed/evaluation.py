"""Evaluation: feature extraction next to the bare backbone, k-NN next to a matrix product, and the probes."""

import numpy as np
import torch
from torch import nn

from glf.config.evaluation import EvaluateConfig
from glf.data.arrays import array_key
from glf.data.images import ImageSet
from glf.evaluation.classifiers import LogisticRegression, linear_probe
from glf.evaluation.probes import TRIAL_TOLERANCE
from glf.malloc import retain_freed_memory
from glf.measure.knn import knn_predict, weighted_knn_predict
from glf.nn.backbone import Backbone
from glf.nn.features import encode
from glf.nn.pretrained import load_encoder
from speed.timing import Row, interleaved

BANK, QUERIES, WIDTH = 50_000, 10_000, 512


def features(pixels: np.ndarray) -> list[Row]:
    """Feature extraction next to the bare network on precomputed batches."""
    return [_features(pixels, name, count) for name, count in (("small_resnet", 4096), ("resnet18", 512))]


def _features(pixels: np.ndarray, name: str, count: int) -> Row:
    network = Backbone(name, channels=3, image_size=32).eval().to(memory_format=torch.channels_last)
    some = np.ascontiguousarray(pixels[np.arange(count) % len(pixels)])
    images = ImageSet(name="", pixels=some, targets=np.full(count, -1), classes=(), key=array_key(some))
    x = torch.rand(256, 3, 32, 32).to(memory_format=torch.channels_last)

    def bare() -> None:
        with torch.inference_mode():
            for _ in range(count // 256):
                network(x)

    def ours() -> None:
        for _ in encode(network, images, size=32, batch_size=256):
            pass

    with retain_freed_memory():
        seconds = interleaved({"ours": ours, "bare": bare}, repetitions=3)
    speed = {case: count / value for case, value in seconds.items()}
    return Row.of_speeds("feature extraction", name, speed["ours"], speed["bare"], to="bare forward pass", digits=0)


def neighbours() -> tuple[list[Row], dict[str, dict[int, float]]]:
    """10,000 queries against 50,000 x 512."""
    from lightly.utils.benchmarking import knn_predict as lightly_knn_predict
    from sklearn.neighbors import KNeighborsClassifier

    torch.manual_seed(0)
    centres = torch.randn(10, WIDTH)
    labels, truth = torch.randint(10, (BANK,)), torch.randint(10, (QUERIES,))
    bank, queries = (centres[y] + 3 * torch.randn(len(y), WIDTH) for y in (labels, truth))
    classifier = KNeighborsClassifier(5, algorithm="brute").fit(bank.numpy(), labels.numpy())
    unit, directions = nn.functional.normalize(bank, dim=1).T.contiguous(), nn.functional.normalize(queries, dim=1)

    def product() -> None:
        for start in range(0, QUERIES, 1000):
            queries[start : start + 1000] @ bank.T

    def of_lightly() -> None:
        for start in range(0, QUERIES, 1000):
            lightly_knn_predict(directions[start : start + 1000], unit, labels, 10, knn_k=20, knn_t=0.07)

    with retain_freed_memory():
        seconds = interleaved(
            {
                "k-NN (k = 5)": lambda: knn_predict(bank, labels, queries, 5),
                "weighted k-NN": lambda: weighted_knn_predict(bank, labels, queries, 20),
                "the matrix product alone": product,
                "scikit-learn, brute force": lambda: classifier.predict(queries.numpy()),
                "lightly": of_lightly,
            },
            repetitions=2,
        )
        curve = {
            size: interleaved({"": lambda size=size: knn_predict(bank[:size], labels[:size], queries[:2000], 5)}, 2)[""]
            for size in (6_250, 12_500, 25_000, 50_000)
        }
    pairs = (
        ("k-NN (k = 5)", "the matrix product alone", 0.7),
        ("weighted k-NN", "the matrix product alone", 0.7),
        ("k-NN (k = 5)", "scikit-learn, brute force", None),
        ("weighted k-NN", "lightly", None),
    )
    rows = [
        Row(
            part="10,000 queries against 50,000 x 512",
            what=name,
            value=f"{seconds[name]:.2f} against {seconds[peer]:.2f} s",
            ratio=seconds[peer] / seconds[name],
            to=peer,
            at_least=limit,
        )
        for name, peer, limit in pairs
    ]
    return rows, {"k-NN (k = 5), 2,000 queries": curve}


def probe() -> list[Row]:
    """The linear probe next to the same steps with autograd and an optimizer, and next to scikit-learn's solver."""
    from sklearn.linear_model import LogisticRegression

    torch.manual_seed(0)
    count, width, epochs = 10_000, 256, 20
    labels = torch.randint(10, (count,))
    x = torch.randn(10, width)[labels] * 0.3 + torch.randn(count, width)

    def by_autograd() -> None:
        layer = nn.Linear(width, 10)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2, momentum=0.9, weight_decay=5e-6)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, labels), batch_size=1000, shuffle=True)
        for _ in range(epochs):
            for batch, target in data:
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(batch), target).backward()
                optimizer.step()

    solver = LogisticRegression(max_iter=200)
    with retain_freed_memory():
        seconds = interleaved(
            {
                "ours": lambda: linear_probe(x, labels, x[:10], classes=10, epochs=epochs),
                "autograd": by_autograd,
                "sklearn": lambda: solver.fit(x.numpy(), labels.numpy()),
            },
            repetitions=3,
        )
    part = "linear probe, 10,000 x 256, ten classes"
    whole = 500 / epochs * seconds["ours"]
    return [
        Row(
            part=part,
            what=f"{epochs} epochs",
            value=f"{seconds['ours']:.2f} against {seconds['autograd']:.2f} s",
            ratio=seconds["autograd"] / seconds["ours"],
            to="DataLoader, autograd and torch's SGD",
        ),
        Row(
            part=part,
            what="all 500 epochs",
            value=f"{whole:.1f} against {seconds['sklearn']:.1f} s",
            ratio=seconds["sklearn"] / whole,
            to="scikit-learn's L-BFGS, at most 200 iterations",
        ),
    ]


def probes_of_photos(count: int = 5_000, size: int = 96, classes: int = 10) -> list[Row]:
    """Both probes with their default settings, next to the feature pass of as many photos."""
    encoder = load_encoder("timm:tf_efficientnet_lite0", size=size).eval().to(memory_format=torch.channels_last)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count // 5, size, size, 3), dtype=np.uint8)  # a fifth is timed
    images = ImageSet(name="", pixels=pixels, targets=np.full(len(pixels), -1), classes=(), key=array_key(pixels))
    torch.manual_seed(0)
    labels = torch.randint(classes, (count,))
    x = 0.15 * torch.randn(classes, encoder.width)[labels] + torch.randn(count, encoder.width)
    strengths = EvaluateConfig.logistic_c

    def feature_pass() -> None:
        for _ in encode(encoder, images, size=size, batch_size=EvaluateConfig.batch_size):
            pass

    def logistic() -> None:
        """As the suite does it: chosen on nine tenths, then fitted to all."""
        model, part = LogisticRegression(classes), count - count // 10
        for strength in strengths:
            model.fit(x[:part], labels[:part], strength, tolerance=TRIAL_TOLERANCE)
        LogisticRegression(classes).fit(x, labels, strengths[1])

    with retain_freed_memory():
        seconds = interleaved(
            {
                "linear probe, 500 epochs": lambda: linear_probe(x, labels, x[:10], classes=classes),
                "logistic probe, five strengths": logistic,
                "pass": feature_pass,
            },
            repetitions=5,
        )
    whole = count / len(pixels) * seconds.pop("pass")
    return [
        Row(
            part=f"probes on {count:,} x {encoder.width:,} features, ten classes",
            what=name,
            value=f"{value:.1f} against {whole:.1f} s",
            ratio=value / whole,
            to=f"feature pass of {count:,} photos, EfficientNet-Lite0 at {size} px",
            at_most=0.5,
        )
        for name, value in seconds.items()
    ]
