"""The pass over blocks against the equations on whole rows."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from glf.constrain.adc.blockwise import Student, divergences
from glf.constrain.adc.equations import ADC, dcm, lpm, outlier_weight
from glf.constrain.adc.kernels import entropy
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.types import Embeddings
from reference import draw

STUDENT, PRIOR_STUDENT = Student(10.5, 0.12), Student(7.0, 0.3)
VIEWS, N = 2, 11
BLOCKS = (1, 2, 5, 10, 11, 99)


def points() -> torch.Tensor:
    return (2 * draw(VIEWS, N, 6) + 30).requires_grad_()  # far from the origin: squares must not lose digits


def log_rows(kernel: torch.Tensor) -> torch.Tensor:
    return kernel.masked_fill(torch.eye(N, dtype=torch.bool), -torch.inf).log_softmax(-1)


def squares(y: torch.Tensor) -> torch.Tensor:
    return (y.unsqueeze(-2) - y.unsqueeze(-3)).pow(2).sum(-1)


def student(y: torch.Tensor, kernel: Student) -> torch.Tensor:
    return log_rows(-kernel.power * torch.log1p(kernel.slope * squares(y)))


def on_whole_rows(y: torch.Tensor, prior: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cal, dat, pre = log_rows(-squares(y) / 2).detach(), student(y, STUDENT), student(prior, PRIOR_STUDENT)

    def expected(row: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (row.exp() * value).nan_to_num(0).sum(-1)  # zero times the anchor's own -inf

    divergence = expected(cal, cal.nan_to_num(neginf=0) - dat.nan_to_num(neginf=0))
    return divergence, -expected(pre, dat), -expected(pre, pre), -expected(cal, cal), -expected(dat, dat)


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_do_not_change_the_numbers(block):
    y, prior, weights = points(), draw(N, 4, seed=1), draw(2, VIEWS, N, seed=2)
    found = divergences(y, STUDENT, prior, PRIOR_STUDENT, entropies=True, block=block)
    whole = on_whole_rows(y, prior)
    for ours, theirs in zip(found, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for upstream in (weights, weights * torch.tensor([1.0, 0.0]).view(2, 1, 1)):
        gradients = [
            torch.autograd.grad((upstream * torch.stack(values[:2])).sum(), y, retain_graph=True)[0]
            for values in (found, whole)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    assert not any(value.requires_grad for value in found[2:])


@pytest.mark.parametrize("part", ["calibration", "preservation"])
def test_each_part_has_its_own_gradient(part):
    """Only one of the two is asked for: the other's rows are not even computed."""
    y, prior = points(), draw(N, 4, seed=1)
    place = divergences(y, STUDENT, prior, PRIOR_STUDENT)._fields.index(part)
    ours, theirs = (
        torch.autograd.grad(values[place].sum(), y)[0]
        for values in (divergences(y, STUDENT, prior, PRIOR_STUDENT, block=3), on_whole_rows(y, prior))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_without_a_prior_there_is_calibration_alone():
    found = divergences(points(), STUDENT)
    assert found.preservation is None
    assert found.entropy_pre is None
    assert found.entropy_cal is None
    torch.testing.assert_close(found.calibration, on_whole_rows(points(), draw(N, 4))[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", ["sphere", "batch"])
def test_the_terms_are_the_equations_on_whole_rows(covariance):
    rows, z, prior = NeighbourDistributions(covariance=covariance), draw(2, 9, 4).requires_grad_(), draw(9, 5, seed=1)
    e = Embeddings(z=z, prior=prior)
    pre, dat = rows.pre(e), rows.dat(e)
    whole = 0.7 * dcm(rows.cal(e), dat, outlier_weight(entropy(pre))) + 0.2 * lpm(dat, pre)
    term = ADC(0.7, 0.2, covariance=covariance)(Embeddings(z=z, prior=prior))
    torch.testing.assert_close(term, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(value, z)[0] for value in (term, whole)), rtol=1e-9, atol=1e-12)


class Largest(TorchDispatchMode):
    """The entries of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, torch.Tensor):
                self.entries = max(self.entries, value.numel())
        return out


def test_nothing_grows_with_the_square_of_the_batch():
    n, block = 600, 7
    y, prior = draw(2, n, 4).requires_grad_(), draw(n, 3, seed=1)
    with Largest() as seen:
        found = divergences(y, STUDENT, prior, PRIOR_STUDENT, block=block)
        (found.calibration.sum() + found.preservation.sum()).backward()
    assert seen.entries <= 2 * n * max(block, 4 + 2)


def test_a_batch_larger_than_a_block_is_cut():
    """Through the terms, with the default block: all pairs of two views would be 34 million."""
    z, prior = torch.randn(2, 4096, 4, requires_grad=True), torch.randn(4096, 3)
    with Largest() as seen:
        ADC()(*z, prior=prior).backward()
    assert seen.entries <= 2**21


def test_it_says_that_it_cannot_be_differentiated_twice():
    y = points()
    with pytest.raises(RuntimeError, match="once only"):
        torch.autograd.grad(divergences(y, STUDENT).calibration.sum(), y, create_graph=True)


def test_backward_may_be_called_inside_autocast():
    z, prior = draw(2, 9, 4).float(), draw(9, 5, seed=1).float()
    plain, inside = z.clone().requires_grad_(), z.clone().requires_grad_()
    ADC()(*plain, prior=prior).backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ADC()(*inside, prior=prior).backward()
    assert torch.equal(plain.grad, inside.grad)


def test_gradcheck_with_the_gaussian_rows_held_fixed():
    """Preservation has nothing to hold fixed; calibration's fixed rows are the loops' affair."""
    y, prior = draw(2, 5, 3).requires_grad_(), draw(5, 4, seed=1)
    assert torch.autograd.gradcheck(lambda y: divergences(y, STUDENT, prior, PRIOR_STUDENT, block=2).preservation, y)
