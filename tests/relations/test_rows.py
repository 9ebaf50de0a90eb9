"""Distributions against their loops, where their entries come from, and what is refused."""

from functools import partial

import pytest
import torch

import reference
from glf.constrain.contrast import FromQueue
from glf.relations import (
    Attract,
    CosineSoftmax,
    Gaussian,
    Labels,
    Nearest,
    OtherView,
    Relate,
    RowPartition,
    StudentT,
    Uniform,
)
from glf.relations.rows import Place
from glf.types import Embeddings
from reference import draw, draw_fields

N = 6
FIELDS = draw_fields(batch=N)
LABELS = FIELDS["target"].tolist()


def of_views(kernel, z):
    """Distributions over the other samples of all views."""
    points = z.flatten(0, 1)
    return reference.over(points, points, kernel, reference.itself)


def of_batch(kernel, z):
    """Distributions over the other images, view by view."""
    return [row for view in z for row in reference.over(view, view, kernel, reference.itself)]


# Rows of z with their loops. The target is always a cosine softmax of h.
ROWS = {
    "cosine": (CosineSoftmax(temperature=0.5), reference.cosine_kernel(0.5)),
    "gaussian": (Gaussian(dim=3.0), reference.gaussian_kernel(3.0)),
    "raw gaussian": (Gaussian(space="raw", scale=0.7), reference.gaussian_kernel(0.7, reference.as_it_is)),
    "student": (StudentT(), reference.student_kernel(5.0, 8.0, 8 * 3 / 5)),
    "raw student": (
        StudentT(space="raw", scale=0.5, dim=1.0, rho=3.0, t_scale="scale"),
        reference.student_kernel(3.0, 1.0, 0.5, reference.as_it_is),
    ),
}


@pytest.mark.parametrize("divergence", ["kl", "reverse", "js", "tv"])
@pytest.mark.parametrize("among", ["batch", "views"])
@pytest.mark.parametrize("name", ROWS)
def test_a_relation_equals_its_loops(name, among, divergence):
    rows, kernel = ROWS[name]
    over = of_batch if among == "batch" else of_views

    def ours(z):
        return Relate(CosineSoftmax("h"), rows, divergence, among=among)(Embeddings(z=z, h=FIELDS["h"]))

    def loops(z):
        return reference.relate(over(reference.cosine_kernel(0.1), FIELDS["h"]), over(kernel, z), divergence)

    gradients = reference.same(ours, loops, FIELDS["z"])
    assert gradients[0].any()


@pytest.mark.parametrize("name", ROWS)
def test_gradcheck(name):
    relation = Relate(CosineSoftmax("h"), ROWS[name][0], "js", among="views")
    z = FIELDS["z"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: relation(Embeddings(z=z, h=FIELDS["h"])), [z])


TARGETS = {
    "labels": (Labels(), "batch", lambda: reference.equally_among(lambda i, j: i != j and LABELS[i] == LABELS[j], N)),
    "other view": (OtherView(), "views", lambda: reference.equally_among(lambda i, j: abs(i - j) == N, 2 * N)),
    "uniform": (Uniform(), "batch", lambda: reference.equally_among(lambda i, j: i != j, N)),
    "nearest": (Nearest("prior", k=2), "batch", lambda: nearest_of(FIELDS["prior"], 2)),
    "prior": (
        StudentT("prior"),
        "batch",
        lambda: reference.over(
            FIELDS["prior"],
            FIELDS["prior"],
            reference.student_kernel(5.0, 16.0, 16 * 3 / 5, reference.standard(FIELDS["prior"])),
            reference.itself,
        ),
    ),
    "perplexity": (
        Gaussian("clean", perplexity=3.0),
        "batch",
        lambda: reference.gaussian_with_perplexity(
            torch.stack([torch.stack(reference.unit(x)) for x in FIELDS["clean"]]), 3.0
        ),
    ),
}


def nearest_of(points, k):
    order = [
        sorted((j for j in range(N) if j != i), key=lambda j: -float(reference.cos(points[i], points[j])))[:k]
        for i in range(N)
    ]
    return reference.equally_among(lambda i, j: j in order[i], N)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_equals_its_loops(name):
    target, among, expected = TARGETS[name]
    rows, kernel = ROWS["cosine"]

    def ours(z):
        return Relate(target, rows, among=among)(Embeddings(**{**FIELDS, "z": z}))

    def loops(z):
        if among == "views":
            return reference.relate(expected(), of_views(kernel, z))
        return reference.relate(expected() * len(z), of_batch(kernel, z))

    assert reference.same_up_to(1e-5 if name == "perplexity" else 1e-9, ours, loops, FIELDS["z"])[0].any()


def test_mixtures_and_products():
    rows, kernel = ROWS["cosine"]
    one, two = (
        reference.over(FIELDS[f], FIELDS[f], reference.cosine_kernel(0.5), reference.itself) for f in ("prior", "clean")
    )
    mixed = [[(3 * a + b) / 4 for a, b in zip(x, y, strict=True)] for x, y in zip(one, two, strict=True)]
    multiplied = []
    for x, y in zip(one, two, strict=True):
        row = [a * b**0.5 for a, b in zip(x, y, strict=True)]
        multiplied.append([a / sum(row) for a in row])
    p, q = CosineSoftmax("prior", temperature=0.5), CosineSoftmax("clean", temperature=0.5)
    for target, expected in ((0.75 * p + 0.25 * q, mixed), (3 * p + q, mixed), (p * q**0.5, multiplied)):
        found = Relate(target, rows)(Embeddings(**FIELDS))
        torch.testing.assert_close(found, reference.relate(expected * 2, of_batch(kernel, FIELDS["z"])))
    assert str(0.75 * p + 0.25 * OtherView()) == "0.75 CosineSoftmax(of=prior, temperature=0.5) + 0.25 OtherView()"


def test_a_part_without_entries_leaves_the_others():
    """Only the first two images have another one of their class; the others have the rest of the mixture."""
    target, e = torch.tensor([0, 0, 1, 2, 3, 4]), Embeddings(**{**FIELDS, "target": torch.tensor([0, 0, 1, 2, 3, 4])})
    log_p = (0.5 * Labels() + 0.5 * Uniform()).log_p(e, Place("batch"))
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(N, dtype=torch.float64))
    assert log_p.exp()[2:].max() == pytest.approx(1 / (N - 1))
    assert log_p.exp()[0, 1] == pytest.approx(0.5 + 0.5 / (N - 1))
    assert Labels().log_p(Embeddings(**{**FIELDS, "target": target}), Place("batch")).exp()[2:].sum() == 0


def test_attract_and_partition_are_kl_and_the_entropy():
    relation = Relate(0.9 * CosineSoftmax("h") + 0.1 * Uniform(), StudentT())
    e = Embeddings(**FIELDS)
    both = Attract(relation)(e) + RowPartition(relation)(e)
    torch.testing.assert_close(both, relation(e) + relation.diagnose(e)["entropy/relate/target"], rtol=1e-12, atol=0)


def test_targets_have_no_gradient_and_rows_do():
    h, z = FIELDS["h"].clone().requires_grad_(), FIELDS["z"].clone().requires_grad_()
    Relate(CosineSoftmax("h"), CosineSoftmax())(Embeddings(z=z, h=h)).backward()
    assert h.grad is None
    assert z.grad.any()


@pytest.mark.parametrize("current", [False, True])
def test_over_a_queue_of_the_prior(current):
    relation, transform = (
        Relate(CosineSoftmax("prior"), CosineSoftmax("r"), among="queue"),
        FromQueue(9, "prior", current=current),
    )
    first, second = (Embeddings(**draw_fields(batch=N, seed=20 * i)) for i in range(2))
    transform(first)
    entries = (second.prior, first.prior) if current else (first.prior,)
    newest = torch.cat([torch.nn.functional.normalize(x, dim=1) for x in entries])
    queue = transform(second).queue
    assert queue.shape == (1, 9, 3)
    torch.testing.assert_close(queue[0, : len(newest)], newest[:9])
    p, q = (
        reference.over(x, queue[0], reference.cosine_kernel(0.1), reference.nobody) for x in (second.prior, second.r[0])
    )
    q += reference.over(second.r[1], queue[0], reference.cosine_kernel(0.1), reference.nobody)
    again = FromQueue(9, "prior", current=current)
    again(first)
    torch.testing.assert_close(relation(again(second)), reference.relate(p * 2, q))


def test_over_a_bank_without_the_anchor_itself():
    relation = Relate(CosineSoftmax("prior"), CosineSoftmax("r"), among="bank")
    bank, places = draw(8, 3, seed=5), torch.arange(8)
    with pytest.raises(ValueError, match="call set_bank"):
        relation(Embeddings(**FIELDS))
    relation.set_bank(bank, places)
    indices = FIELDS["indices"].tolist()
    over = partial(reference.over, entries=bank, kernel=reference.cosine_kernel(0.1), same=lambda i, j: indices[i] == j)
    expected = reference.relate(over(FIELDS["prior"]) * 2, over(FIELDS["r"][0]) + over(FIELDS["r"][1]))
    torch.testing.assert_close(relation(Embeddings(**FIELDS)), expected)


def test_an_anchor_without_a_target_has_no_loss():
    target = torch.tensor([0, 0, 1, 2, 3, 4])  # four images are the only ones of their classes
    z = FIELDS["z"].clone().requires_grad_()
    for divergence in ("kl", "js", "tv"):
        relation = Relate(Labels(), CosineSoftmax(temperature=1.0), divergence)
        alone = Relate(Labels(), CosineSoftmax(temperature=1.0), divergence)(Embeddings(z=z, target=torch.arange(6)))
        assert alone.item() == 0
        assert relation(Embeddings(z=z, target=target)).item() > 0


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        (Relate(OtherView(), CosineSoftmax()), "OtherView is among 'views' only"),
        (Relate(Labels(), CosineSoftmax(), among="queue"), "classes of a queue are not known"),
        (Attract(Relate(Uniform(), Labels())), "only a kernel has a partition"),
        (Relate(CosineSoftmax("teacher"), CosineSoftmax(), among="views"), "'teacher' has 1 views and z has 2"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(relation, words):
    e = Embeddings(**{**FIELDS, "teacher": FIELDS["teacher"][:1]}, queue=draw(1, 4, 4))
    with pytest.raises(ValueError, match=words):
        relation(e)
