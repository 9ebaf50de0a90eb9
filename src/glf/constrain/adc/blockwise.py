"""DCM and LPM over blocks of anchors: the values and gradients of ``equations.py``, without n x n matrices.

On whole matrices (``neighbours.py``) automatic differentiation would keep a dozen n x n tensors per view. Here the
forward pass compares a block of anchors with all samples, keeps a few numbers per anchor, and the backward pass
computes the block again. Memory grows with n times the block size. The results differ from the equations on whole
matrices only by the order of summation (tests/constrain/adc/test_blockwise.py).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LOG_ZERO = -1e30  # log-probability of the anchor itself; finite, so that zero times it is zero
CPU_BLOCK_ENTRIES, GPU_BLOCK_ENTRIES = 2**21, 2**25  # of all views together: a block should fit into the cache


class StudentKernel(NamedTuple):
    r"""Student-t kernel of squared distances with logarithm :math:`-a \log(1 + b D)`, the same as ``log_student``.

    One matrix product gives the base :math:`1 + b D`. The Gaussian kernel of the same distances is a function of it.
    """

    exponent: float  # a
    slope: float  # b

    def factors(self, y: Float[Tensor, "*view anchor dim"]) -> tuple[Tensor, Tensor]:
        """Vectors u and v with u_i . v_j = 1 + b |y_i - y_j|^2: two additional columns hold the squares.

        The samples are centred first. This does not change distances, and without it a large common offset would cancel
        most significant digits.
        """
        y = y - y.mean(-2, keepdim=True)
        square, one = self.slope * y.pow(2).sum(-1, keepdim=True), torch.ones_like(y[..., :1])
        return torch.cat((-2 * self.slope * y, square + 1, one), -1), torch.cat((y, one, square), -1)

    def log_student(self, base: Tensor, block: slice) -> Tensor:
        """Log Student-t kernel, from the base."""
        return _without_anchors(base.log().mul_(-self.exponent), block)

    def log_gaussian(self, base: Tensor, block: slice) -> Tensor:
        """Log Gaussian kernel, -D/2 up to a constant, from the base."""
        return _without_anchors(base * (-0.5 / self.slope), block)


class Divergences(NamedTuple):
    """Values per anchor, before the mean over anchors. The entropies have no gradient."""

    calibration: Float[Tensor, "view anchor"]  # KL(cal || dat), cal without gradient
    preservation: Float[Tensor, "view anchor"] | None  # cross-entropy of dat under pre
    entropy_pre: Float[Tensor, " anchor"] | None
    entropy_cal: Float[Tensor, "view anchor"] | None
    entropy_dat: Float[Tensor, "view anchor"] | None


def divergences(
    points: Float[Tensor, "view anchor dim"],
    kernel: StudentKernel,
    prior: Float[Tensor, "anchor width"] | None = None,
    prior_kernel: StudentKernel | None = None,
    *,
    entropies: bool = False,
    block_size: int | None = None,
) -> Divergences:
    """Compute all divergences in one pass over blocks of anchors.

    Squared distances of ``points`` are those of the Gaussian kernel. The prior gets no gradient. ``entropies`` adds
    those of ``cal`` and ``dat``, which the loss does not need.
    """
    if block_size is None:
        views, n, _ = points.shape
        entries = CPU_BLOCK_ENTRIES if points.device.type == "cpu" else GPU_BLOCK_ENTRIES
        block_size = max(1, min(n, entries // (views * n)))
    return Divergences(*_Divergences.apply(points, prior, kernel, prior_kernel, entropies, block_size))


class _Divergences(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        points: Tensor,
        prior: Tensor | None,
        kernel: StudentKernel,
        prior_kernel: StudentKernel | None,
        entropies: bool,
        block_size: int,
    ) -> tuple[Tensor | None, ...]:
        factors = kernel.factors(points)
        prior_factors = None if prior is None or prior_kernel is None else prior_kernel.factors(prior)
        calibration, preservation, entropy_cal, entropy_dat = points.new_empty(4, *points.shape[:2])
        entropy_pre = points.new_empty(points.shape[1])
        for block in _blocks(points.shape[1], block_size):
            base = _base(factors, block)
            log_cal = kernel.log_gaussian(base, block).log_softmax(-1)
            log_dat = kernel.log_student(base, block).log_softmax(-1)
            if prior_factors is not None and prior_kernel is not None:
                log_pre = prior_kernel.log_student(_base(prior_factors, block), block).log_softmax(-1)
                pre = log_pre.exp()
                entropy_pre[block] = -_dot(pre, log_pre)
                preservation[:, block] = -_dot(pre, log_dat)
            cal = log_cal.exp()
            if entropies:
                entropy_cal[:, block], entropy_dat[:, block] = -_dot(cal, log_cal), -_dot(log_dat.exp(), log_dat)
            calibration[:, block] = _dot(cal, log_cal.sub_(log_dat))
        ctx.save_for_backward(points, prior)
        ctx.kernel, ctx.prior_kernel, ctx.block_size = kernel, prior_kernel, block_size
        ctx.mark_non_differentiable(entropy_pre, entropy_cal, entropy_dat)
        ctx.set_materialize_grads(False)
        of_prior = (preservation, entropy_pre) if prior_factors is not None else (None, None)
        return calibration, *of_prior, *((entropy_cal, entropy_dat) if entropies else (None, None))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: without this error the second derivative would be wrong
            raise RuntimeError(
                "ADC can be differentiated once only: for second derivatives use the functions dcm() and lpm()"
            )
        if gradients[0] is None and gradients[1] is None:
            return (None,) * 6
        points, prior = ctx.saved_tensors
        with torch.autocast(points.device.type, enabled=False):  # a training loop may call backward() inside autocast
            gradient = _gradient(ctx, points, prior, *gradients[:2])
        return gradient, None, None, None, None, None


def _gradient(
    ctx: Any, points: Tensor, prior: Tensor | None, calibration: Tensor | None, preservation: Tensor | None
) -> Tensor:
    """Gradient at the points, from the gradients at each anchor's calibration and preservation."""
    kernel, prior_kernel, dim = ctx.kernel, ctx.prior_kernel, points.shape[2]
    calibration, preservation = (None if g is None else g.unsqueeze(-1) for g in (calibration, preservation))
    total = torch.stack([g for g in (calibration, preservation) if g is not None]).sum(0)
    factors = kernel.factors(points)
    prior_factors = None if preservation is None else prior_kernel.factors(prior)
    # With A = dL/dD and D = |y_i - y_j|^2: dL/dy_i = 2 sum_j (A_ij + A_ji)(y_i - y_j). A column of ones next to y
    # makes the products with A return the sums of A too.
    y: Tensor = factors[1][..., : dim + 1].contiguous()
    pulled = torch.zeros_like(y)
    for block in _blocks(points.shape[1], ctx.block_size):
        base = _base(factors, block)
        by_log = kernel.log_student(base, block).softmax(-1).mul_(total[:, block])
        if calibration is not None:
            by_log.addcmul_(kernel.log_gaussian(base, block).softmax(-1), calibration[:, block], value=-1)
        if prior_factors is not None and preservation is not None:
            pre = prior_kernel.log_student(_base(prior_factors, block), block).softmax(-1)
            by_log.addcmul_(pre.expand_as(by_log), preservation[:, block], value=-1)
        by_distance = by_log.div_(base)  # up to the factor at the end
        pulled[:, block] += torch.bmm(by_distance, y)
        pulled.baddbmm_(by_distance.transpose(1, 2), y[:, block])
    factor: float = -2 * kernel.exponent * kernel.slope
    return factor * (pulled[..., dim:] * y[..., :dim] - pulled[..., :dim])


def _base(factors: tuple[Tensor, Tensor], block: slice) -> Tensor:
    """1 + b D of a block of anchors with all samples."""
    return (factors[0][..., block, :] @ factors[1].transpose(-1, -2)).clamp_min_(1)


def _without_anchors(log_kernel: Tensor, block: slice) -> Tensor:
    log_kernel.diagonal(block.start, -2, -1).fill_(LOG_ZERO)
    return log_kernel


def _blocks(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _dot(p: Tensor, values: Tensor) -> Tensor:
    return (p * values).sum(-1)
