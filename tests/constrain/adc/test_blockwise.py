"""The blockwise computation against the equations on whole matrices."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from glf.constrain.adc import ADC, dcm, lpm, outlier_weight
from glf.constrain.adc.blockwise import Given, Rows, StudentKernel, divergences
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.types import Embeddings
from reference import draw

KERNEL, PRIOR_KERNEL = StudentKernel(10.5, 0.12), StudentKernel(7.0, 0.3)
VIEWS, N = 2, 11
BLOCKS = (1, 2, 5, 10, 11, 99)


def given(prior: torch.Tensor) -> Given:
    return Given(KERNEL, Rows(prior, PRIOR_KERNEL))


def points() -> torch.Tensor:
    return (2 * draw(VIEWS, N, 6) + 30).requires_grad_()  # far from the origin: squares must not lose digits


def normalised(kernel: torch.Tensor) -> torch.Tensor:
    return kernel.masked_fill(torch.eye(N, dtype=torch.bool), -torch.inf).log_softmax(-1)


def squares(y: torch.Tensor) -> torch.Tensor:
    return (y.unsqueeze(-2) - y.unsqueeze(-3)).pow(2).sum(-1)


def student(y: torch.Tensor, kernel: StudentKernel) -> torch.Tensor:
    return normalised(-kernel.exponent * torch.log1p(kernel.slope * squares(y)))


def on_whole_matrices(y: torch.Tensor, prior: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cal, dat, pre = normalised(-squares(y) / 2).detach(), student(y, KERNEL), student(prior, PRIOR_KERNEL)

    def expected(log_p: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (log_p.exp() * value).nan_to_num(0).sum(-1)  # 0 times the -inf of the anchor

    divergence = expected(cal, cal.nan_to_num(neginf=0) - dat.nan_to_num(neginf=0))
    return divergence, -expected(pre, dat), -expected(pre, pre), -expected(cal, cal), -expected(dat, dat)


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_do_not_change_the_numbers(block):
    y, prior, weights = points(), draw(N, 4, seed=1), draw(2, VIEWS, N, seed=2)
    found = divergences(y, given(prior), entropies=True, block_size=block)
    whole = on_whole_matrices(y, prior)
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
    """With a gradient at one of them only, the distributions of the other are not computed."""
    y, prior = points(), draw(N, 4, seed=1)
    place = divergences(y, given(prior))._fields.index(part)
    ours, theirs = (
        torch.autograd.grad(values[place].sum(), y)[0]
        for values in (divergences(y, given(prior), block_size=3), on_whole_matrices(y, prior))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_without_a_prior_there_is_calibration_only():
    found = divergences(points(), Given(KERNEL))
    assert found.preservation is None
    assert found.entropy_pre is None
    assert found.entropy_cal is None
    torch.testing.assert_close(found.calibration, on_whole_matrices(points(), draw(N, 4))[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", ["sphere", "batch"])
def test_the_terms_equal_the_equations_on_whole_matrices(covariance):
    z, prior = draw(2, 9, 4).requires_grad_(), draw(9, 5, seed=1)
    neighbours = NeighbourDistributions(covariance=covariance)
    e = Embeddings(z=z, prior=prior)
    pre, dat = neighbours.log_pre(e), neighbours.log_dat(e)
    whole = 0.7 * dcm(neighbours.log_cal(e), dat, outlier_weight(entropy(pre))) + 0.2 * lpm(dat, pre)
    term = ADC(nu=0.7, upsilon=0.2, covariance=covariance)(Embeddings(z=z, prior=prior))
    torch.testing.assert_close(term, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(value, z)[0] for value in (term, whole)), rtol=1e-9, atol=1e-12)


class Largest(TorchDispatchMode):
    """Records the number of entries of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, torch.Tensor):
                self.entries = max(self.entries, value.numel())
        return out


def test_no_tensor_grows_with_the_square_of_the_batch():
    n, block = 600, 7
    y, prior = draw(2, n, 4).requires_grad_(), draw(n, 3, seed=1)
    with Largest() as seen:
        found = divergences(y, given(prior), block_size=block)
        (found.calibration.sum() + found.preservation.sum()).backward()
    assert seen.entries <= 2 * n * max(block, 4 + 2)


def test_a_large_batch_is_computed_in_blocks():
    """Through the terms, with the default block size: all pairs of two views would be 34 million entries."""
    z, prior = torch.randn(2, 4096, 4, requires_grad=True), torch.randn(4096, 3)
    with Largest() as seen:
        ADC()(*z, prior=prior).backward()
    assert seen.entries <= 2**21


def test_a_second_derivative_is_an_error():
    y = points()
    with pytest.raises(RuntimeError, match="once only"):
        torch.autograd.grad(divergences(y, Given(KERNEL)).calibration.sum(), y, create_graph=True)


def test_backward_may_be_called_inside_autocast():
    z, prior = draw(2, 9, 4).float(), draw(9, 5, seed=1).float()
    plain, inside = z.clone().requires_grad_(), z.clone().requires_grad_()
    ADC()(*plain, prior=prior).backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ADC()(*inside, prior=prior).backward()
    assert torch.equal(plain.grad, inside.grad)


def test_gradcheck_of_preservation():
    """Calibration holds its Gaussian distributions fixed, which finite differences cannot do: see the loops."""
    y, prior = draw(2, 5, 3).requires_grad_(), draw(5, 4, seed=1)
    assert torch.autograd.gradcheck(lambda y: divergences(y, given(prior), block_size=2).preservation, y)
