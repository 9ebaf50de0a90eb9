"""The network's embeddings against the same layers called by hand; the EMA teacher."""

import copy
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from glf.nn.backbone import Backbone
from glf.nn.heads import Heads, mlp
from glf.nn.network import Network, Teacher, momentum_at
from glf.types import FIELDS, Views
from reference import draw

HEADS = Heads(projector=(12, 6), predictor=(5,))
OPTIONAL = ("h", "p", "teacher", "prior")


def network(*needs: str) -> Network:
    torch.manual_seed(0)
    return Network(Backbone("small_resnet", channels=1, image_size=16), HEADS, frozenset(needs))


def views(*sizes: int, batch: int = 5) -> Views:
    generator = torch.Generator().manual_seed(1)
    # Each view is brighter than the previous one, which normalising view by view would hide.
    x = tuple(torch.rand(batch, 1, s, s, generator=generator) * (i + 1) / len(sizes) for i, s in enumerate(sizes))
    indices = torch.arange(batch)
    return Views(x, torch.zeros(len(sizes), batch, 4), indices, indices, torch.randn(batch, 3, generator=generator))


@pytest.mark.parametrize(
    "needs",
    [set(c) for n in range(5) for c in combinations(OPTIONAL, n)],
    ids=lambda needs: "-".join(sorted(needs)) or "nothing",
)
def test_only_needed_fields_are_computed(needs):
    net, given = network("z", *needs), views(16, 16)
    embeddings = net(given)
    assert {name for name in FIELDS if getattr(embeddings, name) is not None} == {"z", *needs}
    shapes = {"z": (2, 5, 6), "h": (2, 5, 256), "p": (2, 5, 6), "teacher": (2, 5, 6), "prior": (5, 3)}
    assert all(getattr(embeddings, name).shape == shapes[name] for name in {"z", *needs})
    assert (net.predictor is not None, net.teacher is not None) == ("p" in needs, "teacher" in needs)
    if "prior" in needs:
        assert embeddings.prior is given.prior


def test_views_are_normalised_as_one_batch():
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


def test_the_gradient_at_z_includes_the_predictors_part():
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
    full = [i for i, size in enumerate(sizes) if size == sizes[0]]  # the teacher does not see local crops
    leading = full[: next((i for i, j in enumerate(full) if i != j), len(full))]
    assert len(embeddings.teacher) == len(leading)
    for i in leading:
        torch.testing.assert_close(embeddings.teacher[i], net.student(given.x[i]))
    assert net.train()(given).z.shape == (len(sizes), 5, 6)


def test_heads_have_the_given_widths():
    widths = [layer.out_features for layer in network("p").modules() if isinstance(layer, torch.nn.Linear)]
    assert widths == [12, 6, 5, 6]
    assert network().backbone.name == "small_resnet"


# --- the EMA teacher


def student_and_teacher() -> tuple[nn.Module, Teacher]:
    torch.manual_seed(0)
    student = mlp((5, 7, 3)).double()
    teacher = Teacher(student)
    for parameter in student.parameters():
        parameter.data += torch.randn_like(parameter)
    return student, teacher


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.996, 1.0])
def test_the_teacher_is_the_moving_average(momentum):
    student, teacher = student_and_teacher()
    before = [p.clone() for p in teacher.parameters()]
    kept = copy.deepcopy(student.state_dict())
    for _ in range(2):
        expected = [momentum * m + (1 - momentum) * s for m, s in zip(before, student.parameters(), strict=True)]
        teacher.follow(student, momentum)
        for now, formula in zip(teacher.parameters(), expected, strict=True):
            torch.testing.assert_close(now, formula, rtol=1e-12, atol=1e-14)
        before = [p.clone() for p in teacher.parameters()]
    assert all(torch.equal(kept[name], now) for name, now in student.state_dict().items())


def test_the_teacher_starts_as_an_independent_copy():
    student = mlp((5, 3))
    teacher, x = Teacher(student), torch.randn(4, 5)
    assert torch.equal(teacher(x), student(x))
    student[0].weight.data.zero_()
    assert not torch.equal(teacher(x), student(x))


def test_the_teacher_has_no_gradient():
    student, teacher = student_and_teacher()
    x = draw(6, 5).requires_grad_()
    assert not teacher(x).requires_grad
    assert not any(p.requires_grad for p in teacher.parameters())
    teacher.follow(student, 0.5)
    assert not any(p.requires_grad for p in teacher.parameters())
    assert all(p.requires_grad and p.grad is None for p in student.parameters())


def test_the_teacher_has_its_own_batch_statistics():
    student, teacher = student_and_teacher()
    x = draw(6, 5)
    student(x)
    untouched = teacher.copy[1].running_mean.clone()
    teacher.follow(student, 0.5)
    assert torch.equal(teacher.copy[1].running_mean, untouched)
    before = teacher.copy[0](x)
    teacher(x)
    torch.testing.assert_close(teacher.copy[1].running_mean, 0.9 * untouched + 0.1 * before.mean(0))


def test_a_student_of_lower_precision():
    student, teacher = student_and_teacher()
    teacher.follow(student.float(), 0.0)
    assert all(
        m.dtype == torch.float64 and torch.equal(m, s.double())
        for m, s in zip(teacher.parameters(), student.parameters(), strict=True)
    )


def test_the_momentum_schedule_is_half_a_cosine():
    quarter = 0.99 + 0.01 * (1 - 0.5**0.5) / 2  # the cosine of 45 degrees
    for progress, expected in {0.0: 0.99, 0.25: quarter, 0.5: 0.995, 0.75: 1.99 - quarter, 1.0: 1.0}.items():
        assert momentum_at(progress, 0.99, 1.0) == pytest.approx(expected, abs=1e-12)
    assert momentum_at(0.3, 0.5, 0.5) == 0.5


@pytest.mark.parametrize("teacher", [False, True])
def test_embeddings_of_unaugmented_images(teacher):
    """Without gradient, with the batch statistics of these images, which leave no trace in the running ones."""
    net = network("clean", *(["teacher"] if teacher else []))
    given = views(16, 16)._replace(clean=torch.rand(5, 1, 16, 16, generator=torch.Generator().manual_seed(2)))
    if teacher:
        with torch.no_grad():
            for p in net.teacher.parameters():
                p.mul_(1.5)
    without, by_hand = copy.deepcopy(net), copy.deepcopy(net)
    embeddings = net(given)
    assert not embeddings.clean.requires_grad
    encoder = by_hand.teacher.copy if teacher else by_hand.student
    torch.testing.assert_close(embeddings.clean, encoder(given.clean).detach())
    without.needs = without.needs - {"clean"}
    without(given)
    for mine, theirs in zip(net.buffers(), without.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert net(given, with_teacher=False).clean is None


def test_the_teachers_prototypes_follow_and_take_no_gradient():
    """They start as the student's and move with the momentum of the teacher; the view of the student is the other."""
    heads = replace(HEADS, prototypes=4)
    needs = frozenset({"teacher", "prototypes", "teacher_prototypes"})
    net = Network(Backbone("small_resnet", channels=1, image_size=16), heads, needs)
    first = net(views(16, 16))
    torch.testing.assert_close(first.teacher_prototypes, first.prototypes.detach())
    assert not first.teacher_prototypes.requires_grad
    before = net.teacher_prototypes.copy.weight.clone()
    with torch.no_grad():
        net.prototypes.weight.add_(1.0)
    net.update_teacher(0.75)
    torch.testing.assert_close(net.teacher_prototypes.copy.weight, before + 0.25)
    expected = torch.nn.functional.normalize(before + 0.25, dim=1)
    torch.testing.assert_close(net(views(16, 16)).teacher_prototypes, expected)


@pytest.mark.parametrize(("sizes", "full"), [((16, 16), 2), ((16, 16, 8, 8, 8), 2), ((16,), 1)])
def test_the_number_of_full_size_views_is_passed_on(sizes, full):
    assert network("z")(views(*sizes)).full == full


def test_instances_are_positions_among_the_training_images():
    backbone = Backbone("small_resnet", channels=1, image_size=16)
    net = Network(backbone, HEADS, frozenset({"instance_scores", "instance"}), rows=torch.tensor([0, 1, 2, 3, 4, 9]))
    e = net(views(16, 16)._replace(indices=torch.tensor([9, 4, 0, 1, 2])))
    assert e.instance_scores.shape == (2, 5, 6)
    assert e.instance.tolist() == [5, 4, 0, 1, 2]
