"""Theorem 1: its terms against loops, the inequality with exact expectations, counterexamples to the printed form."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from glf.align.distance import cosine
from glf.constrain.contrast import entry_partition, log_partition, queue_partition
from glf.data.augment.augment import augment
from glf.data.augment.policies import policy
from glf.data.batches import to_tensor
from glf.data.sources import load_images
from glf.evaluation.theorem import NOT_COMPUTED, info_nce, mean_cross_entropy, theorem_terms
from glf.measure.classes import within_variance
from glf.methods import parse
from glf.nn.backbone import Backbone
from glf.similarity import similarities
from glf.types import Batch, Embeddings
from reference import cos, draw, mean

FINITE = (math.e - 1) ** 2 / 2


def unit(x: Tensor) -> Tensor:
    return F.normalize(x.double(), dim=1)


# --- the cross-entropy of class means


def mean_cross_entropy_by_loops(features: Tensor, labels: Tensor) -> float:
    u = unit(features)
    means = {int(k): mean(x for x, y in zip(u, labels, strict=True) if y == k) for k in labels.unique()}
    losses = []
    for x, y in zip(u, labels, strict=True):
        scores = {k: math.exp(float(x @ mu)) for k, mu in means.items()}
        losses.append(-math.log(scores[int(y)] / sum(scores.values())))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("samples", "dim", "classes"), [(30, 5, 3), (6, 20, 4), (5, 2, 1)], ids=str)
def test_the_cross_entropy_of_class_means_equals_a_loop(samples, dim, classes):
    features, labels = draw(samples, dim), 3 * (torch.arange(samples) % classes)
    expected = mean_cross_entropy_by_loops(features, labels)
    assert mean_cross_entropy(features, labels) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    turned, _ = torch.linalg.qr(draw(dim, dim, seed=7))
    stretched = (features * (0.2 + draw(samples, 1, seed=8).abs()) @ turned).flip(0)
    assert mean_cross_entropy(stretched, labels.flip(0)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_the_minimum_for_ten_classes_is_that_of_a_simplex():
    simplex = torch.eye(10) - 0.1
    smallest = mean_cross_entropy(simplex.repeat(3, 1), torch.arange(30) % 10)
    assert smallest == pytest.approx(math.log(1 + 9 * math.exp(-10 / 9)))
    assert round(smallest, 3) == 1.377
    assert mean_cross_entropy(torch.ones(30, 10), torch.arange(30) % 10) == pytest.approx(math.log(10))


# --- InfoNCE


def info_nce_by_loops(a: Tensor, b: Tensor, temperature: float) -> float:
    """InfoNCE of one batch with all images."""
    losses = []
    for x, y in ((a, b), (b, a)):
        for i in range(len(x)):
            terms = [math.exp(float(cos(x[i], y[j])) / temperature) for j in range(len(x))]
            losses.append(-math.log(terms[i] / sum(terms)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_info_nce_equals_a_loop(temperature):
    a, b = draw(7, 4), draw(7, 4, seed=1)
    expected = info_nce_by_loops(a, b, temperature)
    assert info_nce(a, b, temperature=temperature, negatives=6) == pytest.approx(expected, rel=1e-12)
    assert info_nce(3 * b, a, temperature=temperature, negatives=6) == pytest.approx(expected, rel=1e-12)
    assert info_nce(a.float(), b.float(), temperature=temperature, negatives=6) == pytest.approx(expected, rel=1e-5)


def test_batches_are_cut_from_a_seeded_permutation():
    a, b = draw(23, 4), draw(23, 4, seed=1)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(3))
    parts = [order[i : i + 5] for i in range(0, 20, 5)]
    expected = sum(info_nce_by_loops(a[rows], b[rows], 1.0) for rows in parts) / 4
    assert info_nce(a, b, negatives=4, seed=3) == pytest.approx(expected, rel=1e-12)
    assert info_nce(a, b, negatives=4, seed=4) != pytest.approx(expected, rel=1e-6)


def test_info_nce_is_the_sum_of_our_terms():
    a, b, t = draw(9, 5), draw(9, 5, seed=1), 0.5
    ours = info_nce(a, b, temperature=t, negatives=8)
    partition = (entry_partition(similarities(a, b, t)) + entry_partition(similarities(b, a, t))) / 2
    assert ours == pytest.approx(float(cosine(a, b, t) + partition), rel=1e-12)
    queues = [
        queue_partition(x[i : i + 1], y[i : i + 1], torch.cat((y[:i], y[i + 1 :])), t)
        for x, y in ((a, b), (b, a))
        for i in range(9)
    ]
    assert ours == pytest.approx(float(cosine(a, b, t) + mean(queues)), rel=1e-12), "MoCo with the batch as its queue"


def test_info_nce_equals_simclr_if_all_negatives_are_alike():
    """SimCLR has both views of the other images: 4 images give the 6 negatives that 7 images give here."""
    simclr = parse("simclr").build(temperature=0.5)
    theirs = simclr(Embeddings(z=torch.eye(4, dtype=torch.float64).expand(2, 4, 4))).total
    assert info_nce(torch.eye(7), torch.eye(7), temperature=0.5, negatives=6) == pytest.approx(float(theirs), rel=1e-12)


def test_info_nce_minus_log_n_tends_to_simclr_minus_log_2n():
    x = pixels(1001)[0]
    a, b = x + 0.1 * draw(*x.shape), x + 0.1 * draw(*x.shape, seed=1)
    ours = info_nce(a, b, negatives=1000) - math.log(1000)
    theirs = float(cosine(a, b) + log_partition(torch.cat((a, b)), 1.0)) - math.log(2000)
    assert ours == pytest.approx(theirs, abs=2e-3)
    assert abs(info_nce(a, b, negatives=1) - theirs) > 0.3


@pytest.mark.parametrize("rows", [1, 4, 10, 33])
def test_blocks_change_nothing(monkeypatch, rows):
    a, b, labels = draw(33, 4), draw(33, 4, seed=1), torch.arange(33) % 3
    whole = theorem_terms(a, b, labels, negatives=10)
    monkeypatch.setattr("glf.measure.blocks.BLOCK_SIZE", rows)
    assert theorem_terms(a, b, labels, negatives=10) == pytest.approx(whole, rel=1e-11)


@pytest.mark.parametrize("negatives", [0, -1, 10, 255])
def test_too_few_or_too_many_negatives(negatives):
    with pytest.raises(ValueError, match=f"^{negatives} negatives of 10 images: choose between 1 and 9"):
        info_nce(draw(10, 3), draw(10, 3), negatives=negatives)


# --- the inequality, with exact expectations


def exactly(
    x: Tensor, positive: Tensor, labels: Tensor, n: int | None, *, with_positive: bool = False
) -> dict[str, float]:
    """Both sides for views that are x or positive with equal probability, and n independent negatives among all views.

    n = None means infinitely many negatives: their mean is its expectation, and log n is left out.
    """
    f, other, y = torch.cat((x, positive)), torch.cat((positive, x)), torch.cat((labels, labels))
    own, similarity = (f * other).sum(1), (f @ f.T).exp()
    partition = torch.zeros(len(f), dtype=torch.float64) if n else similarity.mean(1).log()
    for drawn in itertools.product(range(len(f)), repeat=n) if n else ():
        total = similarity[:, list(drawn)].sum(1)
        partition += (total + own.exp() * with_positive).log() / len(f) ** n
    count = labels.bincount()
    count = count[count > 0]
    return {
        "cross_entropy": mean_cross_entropy(f, y),
        "nce": float((partition - own).mean()),
        "variance": within_variance(f, y),
        "classes": len(count),
        "rarest": int(count.min()) / len(labels),
    }


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 100_000),
    classes=st.integers(1, 4),
    size=st.integers(1, 5),
    dim=st.integers(1, 3),
    n=st.sampled_from([1, 2, None]),
    apart=st.sampled_from([0.0, 0.5, 3.0]),
    noise=st.sampled_from([0.0, 0.3, 3.0]),
    opposite=st.booleans(),
)
def test_the_proved_inequality(seed, classes, size, dim, n, apart, noise, opposite):
    labels = torch.randint(classes, (size,), generator=torch.Generator().manual_seed(seed))
    x = unit(draw(size, dim, seed=seed) + apart * draw(classes, dim, seed=seed + 1)[labels])
    positive = unit((-1 if opposite else 1) * x + noise * draw(size, dim, seed=seed + 2))
    for with_positive in (False, True):
        e = exactly(x, positive, labels, n, with_positive=with_positive)
        right = e["nce"] + e["variance"] - math.log(e["rarest"]) + (FINITE / n - math.log(n) if n else 0)
        assert e["cross_entropy"] <= right + 1e-9
        assert e["variance"] <= math.sqrt(e["variance"]) + 1e-12


@given(st.floats(0.01, 1.0), st.integers(1, 40))
def test_the_logarithm_of_a_mean_of_n_values(share, n):
    """Two values at the ends are the worst case. The number of large ones is binomial, so the expectation is exact."""
    e = math.e
    chances = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    of_means = sum(p * math.log((k * e + (n - k) / e) / n) for k, p in enumerate(chances))
    gap = math.log(share * e + (1 - share) / e) - of_means
    assert -1e-12 <= gap <= FINITE / n


def test_the_finite_term_is_needed_if_only_negatives_are_summed():
    """One class, features at both ends, one negative: without this term, the right side is below the left side."""
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    e = exactly(x, x, torch.tensor([0, 0]), 1)
    assert (e["cross_entropy"], e["variance"]) == (0, 1)
    assert e["nce"] == pytest.approx(-1), "the mean similarity of negatives is 0"
    e = exactly(x, x, torch.tensor([0, 1]), 1)
    assert e["nce"] - math.log(1 / 2) < e["cross_entropy"]
    assert e["nce"] - math.log(1 / 2) == pytest.approx(e["cross_entropy"] - math.log(math.cosh(1)))


def test_without_variance_and_with_many_negatives_both_sides_are_equal():
    means = unit(draw(5, 3))
    labels = torch.arange(2000) % 5
    terms = theorem_terms(means[labels], means[labels], labels, negatives=1999)
    assert terms["variance"] == pytest.approx(0, abs=1e-15)
    assert 0 < terms["slack"] < 5e-3
    assert terms["imbalance"] == pytest.approx(0, abs=1e-12)


def test_the_variance_is_tight_if_views_agree():
    """Each class is an arc, and views are equal: the gap of the positive terms is Var, not its root."""
    angles = torch.linspace(-0.2, 0.2, 500, dtype=torch.float64)
    x = torch.cat([torch.stack(((angles + c).cos(), (angles + c).sin()), 1) for c in (0.0, math.pi)])
    labels = torch.arange(2).repeat_interleave(500)
    terms = theorem_terms(x, x, labels, negatives=999)
    assert 0 < terms["proved_slack"] < terms["finite"] + 0.2 * terms["variance"] + 8 / 999
    assert terms["slack"] > 5 * terms["proved_slack"]


# --- counterexamples to the printed form


def test_the_variance_must_be_that_of_the_minimiser():
    """Printed: f* on the left, Var and L_NCE of any f on the right. Two classes on a circle, and no augmentation.

    Spread evenly, features minimise the contrastive loss; f that puts each class on one point has a larger loss and no
    variance. The bound that this f gives is below the cross-entropy of the minimiser.
    """
    m = 2000
    angles = (torch.arange(m, dtype=torch.float64) + 0.5) / m * 2 * math.pi
    even = torch.stack((angles.cos(), angles.sin()), 1)
    labels = (angles > math.pi).long()
    points = torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)[labels]
    minimiser, other = (theorem_terms(x, x, labels, negatives=m - 1) for x in (even, points))
    assert minimiser["info_nce"] - math.log(m) == pytest.approx(-1 + math.log(1.2660658778), abs=1e-3), "log I0(1) - 1"
    assert other["info_nce"] - math.log(m) == pytest.approx(-1 + math.log(math.cosh(1)), abs=1e-3)
    assert minimiser["info_nce"] < other["info_nce"]
    assert minimiser["cross_entropy"] > other["bound"] + 0.2
    assert minimiser["cross_entropy"] < minimiser["proved"] < minimiser["bound"], "of one and the same f it holds"


def test_classes_must_be_equally_frequent():
    """Eight frequent orthogonal classes, and 200 rare ones in the middle: log(n/K) subtracts too much."""
    frequent, rare = 8, 200
    means = torch.cat((torch.eye(8), torch.full((rare, 8), 8**-0.5))).double()
    p = torch.tensor([0.999 / frequent] * frequent + [0.001 / rare] * rare, dtype=torch.float64)
    # Each class is a point and n is infinite: L_NCE - log n is the mean of log E exp(s) - 1.
    similarity = means @ means.T
    nce = float(p @ ((similarity.exp() @ p).log() - 1))
    cross_entropy = float(p @ (similarity.logsumexp(1) - similarity.diagonal()))
    printed = nce + math.log(frequent + rare)
    assert printed < cross_entropy - 0.1
    assert nce - math.log(float(p.min())) > cross_entropy


def test_negatives_of_other_classes_only_break_it():
    """Without false negatives, the negatives carry no information on the probability of the anchor's own class."""
    n, means = 999, torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    cross_entropy = mean_cross_entropy(means, torch.tensor([0, 1]))
    others_only = -1 + math.log(math.e + n / math.e)
    assert others_only - math.log(n / 2) < cross_entropy - 1.4
    everything = -1 + math.log(math.e + n / 2 * (math.e + 1 / math.e))
    assert everything - math.log(n / 2) > cross_entropy


def test_the_root_of_the_variance_does_not_bound_the_other_side():
    """One class, features at both ends, opposite views: L_NCE exceeds L_CE + log(n/K) by more than the root."""
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(500, 1)
    terms = theorem_terms(x, -x, torch.zeros(1000, dtype=torch.long), negatives=999)
    over = terms["info_nce"] + terms["log_ratio"] - terms["cross_entropy"]
    assert over == pytest.approx(1 + math.log(math.cosh(1)), abs=1e-2)
    assert terms["deviation"] == pytest.approx(1)


# --- the terms together, and real features


def test_the_terms_add_up():
    a, b, labels = draw(60, 4), draw(60, 4, seed=1), torch.tensor([0] * 10 + [4] * 20 + [9] * 30)
    t = theorem_terms(a, b, labels, negatives=19, seed=2)
    views, twice = torch.cat((a, b)), torch.cat((labels, labels))
    assert t["cross_entropy"] == mean_cross_entropy(views, twice)
    assert t["info_nce"] == info_nce(a, b, negatives=19, seed=2)
    assert t["variance"] == within_variance(views, twice) == pytest.approx(t["deviation"] ** 2)
    assert t["log_ratio"] == pytest.approx(-math.log(19 / 3))
    assert t["imbalance"] == pytest.approx(math.log(6 / 3))
    assert t["finite"] == pytest.approx(1.47625 / 19, rel=1e-4)
    assert t["chance"] == pytest.approx(math.log(3))
    assert t["bound"] == pytest.approx(t["info_nce"] + t["deviation"] + t["log_ratio"])
    proved = t["info_nce"] + t["variance"] + t["log_ratio"] + t["imbalance"] + t["finite"]
    assert t["proved"] == pytest.approx(proved)
    assert t["slack"] == pytest.approx(t["bound"] - t["cross_entropy"])
    assert t["proved_slack"] == pytest.approx(t["proved"] - t["cross_entropy"])
    assert all(isinstance(value, float) for value in t.values())
    assert len(NOT_COMPUTED) == 4


def test_images_without_a_label_are_refused():
    with pytest.raises(ValueError, match=r"have no label .*: leave them out"):
        theorem_terms(draw(6, 2), draw(6, 2), torch.tensor([0, 1, -1, 0, 1, 0]), negatives=2)


def pixels(count: int) -> tuple[Tensor, Tensor]:
    images = load_images("fashion-mini", "test")
    return to_tensor(images.pixels[:count]).flatten(1).double() / 255, torch.from_numpy(images.targets[:count].copy())


def test_real_views_through_pixels_and_an_untrained_network():
    images = load_images("fashion-mini", "test")
    target = torch.from_numpy(images.targets[:512].copy())
    batch = Batch(to_tensor(images.pixels[:512]), target, torch.arange(512), None)
    x, y = augment(batch, policy("gentle")[:2], 28, torch.Generator().manual_seed(0)).x
    torch.manual_seed(0)
    backbone = Backbone("small_resnet", channels=1, image_size=28).eval()
    with torch.no_grad():
        network = theorem_terms(backbone(x), backbone(y), target, negatives=127)
    raw = theorem_terms(x.flatten(1), y.flatten(1), target, negatives=127)
    for terms in (network, raw):
        assert terms["cross_entropy"] < terms["proved"]
        assert terms["cross_entropy"] < terms["bound"]
        assert terms["cross_entropy"] < terms["chance"]
    assert network["cross_entropy"] > raw["cross_entropy"], "an untrained network separates classes less than pixels"
