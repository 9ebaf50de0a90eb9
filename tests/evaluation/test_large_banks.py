"""k-NN and probes on 50,000 features, in the memory of a small machine."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from glf.evaluation.classifiers import LogisticRegression, linear_probe
from glf.measure.knn import knn_predict, weighted_knn_predict

generator = torch.Generator().manual_seed(0)
labels = torch.arange(50_000) % 10
means = torch.randn(10, 512, generator=generator)
bank = means[labels] + 3 * torch.randn(50_000, 512, generator=generator)
asked = torch.arange(10_000) % 10
queries = means[asked] + 3 * torch.randn(10_000, 512, generator=generator)
found = {
    "knn5": knn_predict(bank, labels, queries, 5),
    "knn": weighted_knn_predict(bank, labels, queries, 20),
    "linear": linear_probe(bank, labels, queries, classes=10, epochs=5)[0].argmax(1),
    "logistic": LogisticRegression(10).fit(bank, labels, 1.0)(queries).argmax(1),
}
right = {name: float((one == asked).double().mean()) for name, one in found.items()}
assert min(right.values()) > 0.9, right
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_fifty_thousand_features_within_two_gigabytes() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 * 2**30
