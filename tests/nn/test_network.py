"""What the network gives to the objective, against the same layers called by hand."""

import copy
from itertools import combinations

import pytest
import torch
from torch import Tensor

from glf.nn.backbone import Backbone
from glf.nn.heads import Heads
from glf.nn.network import Network
from glf.types import FIELDS, Views

HEADS = Heads(projector=(12, 6), predictor=(5,))
OPTIONAL = ("h", "p", "teacher", "prior")


def network(*needs: str) -> Network:
    torch.manual_seed(0)
    return Network(Backbone("small_resnet", channels=1, image_size=16), HEADS, frozenset(needs))


def views(*sizes: int, batch: int = 5) -> Views:
    generator = torch.Generator().manual_seed(1)
    # Each view is brighter than the one before: what is normalised view by view loses that.
    x = tuple(torch.rand(batch, 1, s, s, generator=generator) * (i + 1) / len(sizes) for i, s in enumerate(sizes))
    rows = torch.arange(batch)
    return Views(x, torch.zeros(len(sizes), batch, 4), rows, rows, torch.randn(batch, 3, generator=generator))


@pytest.mark.parametrize(
    "needs",
    [set(c) for n in range(5) for c in combinations(OPTIONAL, n)],
    ids=lambda needs: "-".join(sorted(needs)) or "nothing",
)
def test_only_what_is_needed_is_there(needs):
    net, given = network("z", *needs), views(16, 16)
    embeddings = net(given)
    assert {name for name in FIELDS if getattr(embeddings, name) is not None} == {"z", *needs}
    shapes = {"z": (2, 5, 6), "h": (2, 5, 256), "p": (2, 5, 6), "teacher": (2, 5, 6), "prior": (5, 3)}
    assert all(getattr(embeddings, name).shape == shapes[name] for name in {"z", *needs})
    assert (net.predictor is not None, net.teacher is not None) == ("p" in needs, "teacher" in needs)
    if "prior" in needs:
        assert embeddings.prior is given.prior


def test_both_views_are_one_batch_to_the_normalisation():
    net, given = network("h", "p", "teacher"), views(16, 16)
    by_hand, apart = copy.deepcopy(net), copy.deepcopy(net)
    embeddings = net(given)

    together = torch.cat(given.x)
    h = by_hand.student[0](together)
    z = by_hand.student[1](h)
    for name, expected in {"h": h, "z": z, "p": by_hand.predictor(z), "teacher": by_hand.teacher(together)}.items():
        torch.testing.assert_close(getattr(embeddings, name).flatten(0, 1), expected)
    for mine, theirs in zip(net.buffers(), by_hand.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    one_by_one = torch.stack([apart.student(x) for x in given.x])
    assert not torch.allclose(one_by_one, embeddings.z, atol=1e-3)


def test_the_gradient_at_z_includes_the_predictors():
    net = network("p")
    embeddings = net(views(16, 16))
    leaf = embeddings.z.detach().requires_grad_()

    def loss(z: Tensor, p: Tensor) -> Tensor:
        return p.pow(2).sum() + 3 * z.sum()

    by_hand = net.predictor(leaf.flatten(0, 1)).reshape(leaf.shape)
    (expected,) = torch.autograd.grad(loss(leaf, by_hand), leaf)
    (gradient,) = torch.autograd.grad(loss(embeddings.z, embeddings.p), embeddings.z)
    torch.testing.assert_close(gradient, expected)
    assert not torch.allclose(gradient, torch.full_like(gradient, 3.0))


def test_the_teacher_starts_as_the_student_and_takes_no_gradient():
    net = network("teacher").eval()
    embeddings = net(views(16, 16))
    assert torch.equal(embeddings.teacher, embeddings.z)
    assert embeddings.z.requires_grad
    assert not embeddings.teacher.requires_grad
    embeddings.z.sum().backward()
    assert all(p.grad is not None for p in net.student.parameters())
    assert all(p.grad is None for p in net.teacher.parameters())


@pytest.mark.parametrize("sizes", [(16, 24), (16, 24, 16), (24, 24, 16, 16)], ids=str)
def test_views_of_several_sizes_keep_their_order(sizes):
    net, given = network("h", "p", "teacher").eval(), views(*sizes)
    embeddings = net(given)
    for i, x in enumerate(given.x):
        z = net.student(x)
        torch.testing.assert_close(embeddings.h[i], net.backbone(x))
        torch.testing.assert_close(embeddings.z[i], z)
        torch.testing.assert_close(embeddings.p[i], net.predictor(z))
    full = [i for i, size in enumerate(sizes) if size == sizes[0]]  # the others are crops, which no teacher sees
    leading = full[: next((i for i, j in enumerate(full) if i != j), len(full))]
    assert len(embeddings.teacher) == len(leading)
    for i in leading:
        torch.testing.assert_close(embeddings.teacher[i], net.student(given.x[i]))
    assert net.train()(given).z.shape == (len(sizes), 5, 6)


def test_heads_follow_their_description():
    widths = [layer.out_features for layer in network("p").modules() if isinstance(layer, torch.nn.Linear)]
    assert widths == [12, 6, 5, 6]
    assert network().backbone.name == "small_resnet"
