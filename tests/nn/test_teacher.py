"""The teacher follows the student, and nothing else moves it."""

import copy

import pytest
import torch
from torch import nn

from glf.nn.heads import mlp
from glf.nn.network import Teacher, momentum_at
from reference import draw


def student_and_teacher() -> tuple[nn.Module, Teacher]:
    torch.manual_seed(0)
    student = mlp((5, 7, 3)).double()
    teacher = Teacher(student)
    for parameter in student.parameters():
        parameter.data += torch.randn_like(parameter)
    return student, teacher


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.996, 1.0])
def test_it_follows_by_the_formula(momentum):
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


def test_it_starts_as_a_copy_of_its_own():
    student = mlp((5, 3))
    teacher, x = Teacher(student), torch.randn(4, 5)
    assert torch.equal(teacher(x), student(x))
    student[0].weight.data.zero_()
    assert not torch.equal(teacher(x), student(x))


def test_it_has_no_gradient():
    student, teacher = student_and_teacher()
    x = draw(6, 5).requires_grad_()
    assert not teacher(x).requires_grad
    assert not any(p.requires_grad for p in teacher.parameters())
    teacher.follow(student, 0.5)
    assert not any(p.requires_grad for p in teacher.parameters())
    assert all(p.requires_grad and p.grad is None for p in student.parameters())


def test_its_batch_statistics_are_its_own():
    student, teacher = student_and_teacher()
    x = draw(6, 5)
    student(x)
    untouched = teacher.copy[1].running_mean.clone()
    teacher.follow(student, 0.5)
    assert torch.equal(teacher.copy[1].running_mean, untouched)
    before = teacher.copy[0](x)
    teacher(x)
    torch.testing.assert_close(teacher.copy[1].running_mean, 0.9 * untouched + 0.1 * before.mean(0))


def test_a_student_of_less_precision():
    student, teacher = student_and_teacher()
    teacher.follow(student.float(), 0.0)
    assert all(
        m.dtype == torch.float64 and torch.equal(m, s.double())
        for m, s in zip(teacher.parameters(), student.parameters(), strict=True)
    )


def test_the_momentum_rises_by_a_half_cosine():
    quarter = 0.99 + 0.01 * (1 - 0.5**0.5) / 2  # the cosine of 45 degrees
    for progress, expected in {0.0: 0.99, 0.25: quarter, 0.5: 0.995, 0.75: 1.99 - quarter, 1.0: 1.0}.items():
        assert momentum_at(progress, 0.99, 1.0) == pytest.approx(expected, abs=1e-12)
    assert momentum_at(0.3, 0.5, 0.5) == 0.5
