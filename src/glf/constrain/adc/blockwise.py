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


class Rows(NamedTuple):
    """Points without gradient whose kernel values give each anchor a distribution that ``dat`` is compared with.

    ``bandwidth`` multiplies the squared distances of each anchor.
    """

    points: Float[Tensor, "anchor dim"]
    kernel: StudentKernel
    bandwidth: Float[Tensor, " anchor"] | None = None

    def factors(self) -> tuple[Tensor, Tensor]:
        """Vectors u and v with u_i . v_j = 1 + s_i b |y_i - y_j|^2."""
        u, v = self.kernel.factors(self.points)
        if self.bandwidth is not None:
            scale = self.bandwidth.unsqueeze(-1)
            u = u * scale
            u[..., -2:-1] += 1 - scale  # of the column whose partner is one
        return u, v


class Divergences(NamedTuple):
    """Values per anchor, before the mean over anchors. The entropies have no gradient."""

    calibration: Float[Tensor, "view anchor"]  # KL(cal || dat), cal without gradient
    preservation: Float[Tensor, "view anchor"] | None  # cross-entropy of dat under pre
    entropy_pre: Float[Tensor, " anchor"] | None
    entropy_cal: Float[Tensor, "view anchor"] | None
    entropy_dat: Float[Tensor, "view anchor"] | None


class Given(NamedTuple):
    """What does not depend on z: its kernel, the prior, and the target of ``dat`` if that has points of its own."""

    kernel: StudentKernel
    pre: Rows | None = None
    target: Rows | None = None
    prior_power: float = 0.0  # exponent of the prior's distributions in a target without points


class _Kernels:
    """Log kernel values of one block of anchors after the other; normalised over the samples they are distributions."""

    def __init__(self, given: Given, points: Tensor, *, with_cal: bool, with_pre: bool) -> None:
        self.given, self.factors = given, given.kernel.factors(points)
        target = given.target if with_cal else None
        pre = given.pre if with_pre or (with_cal and given.prior_power) else None
        self.target_factors = None if target is None else target.factors()
        self.pre_factors = None if pre is None else pre.factors()

    def of_prior(self, block: slice) -> Tensor | None:
        if self.pre_factors is None or self.given.pre is None:
            return None
        return self.given.pre.kernel.log_student(_base(self.pre_factors, block), block)

    def of_target(self, base: Tensor, of_prior: Tensor | None, block: slice) -> Tensor:
        if self.target_factors is not None and self.given.target is not None:
            return self.given.target.kernel.log_gaussian(_base(self.target_factors, block), block)
        log_kernel = self.given.kernel.log_gaussian(base, block)
        if self.given.prior_power and of_prior is not None:
            return log_kernel + self.given.prior_power * of_prior
        return log_kernel


def divergences(
    points: Float[Tensor, "view anchor dim"],
    given: Given,
    *,
    entropies: bool = False,
    block_size: int | None = None,
) -> Divergences:
    """Compute all divergences in one pass over blocks of anchors.

    Squared distances of ``points`` are those of the Gaussian kernel. Only the points get a gradient. ``entropies`` adds
    those of ``cal`` and ``dat``, which the loss does not need.
    """
    if block_size is None:
        views, n, _ = points.shape
        block_size = max(1, min(n, block_entries(points) // (views * n)))
    return Divergences(*_Divergences.apply(points, given, entropies, block_size))


def block_entries(points: Tensor) -> int:
    """Number of entries of all views together in one block, on the device of the points."""
    return CPU_BLOCK_ENTRIES if points.device.type == "cpu" else GPU_BLOCK_ENTRIES


class _Divergences(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Tensor, given: Given, entropies: bool, block_size: int) -> tuple[Tensor | None, ...]:
        kernels = _Kernels(given, points, with_cal=True, with_pre=True)
        calibration, preservation, entropy_cal, entropy_dat = points.new_empty(4, *points.shape[:2])
        entropy_pre = points.new_empty(points.shape[1])
        for block in blocks(points.shape[1], block_size):
            base = _base(kernels.factors, block)
            of_prior = kernels.of_prior(block)
            log_cal = kernels.of_target(base, of_prior, block).log_softmax(-1)
            log_dat = given.kernel.log_student(base, block).log_softmax(-1)
            if of_prior is not None:
                log_pre = of_prior.log_softmax(-1)
                pre = log_pre.exp()
                entropy_pre[block] = -_dot(pre, log_pre)
                preservation[:, block] = -_dot(pre, log_dat)
            cal = log_cal.exp()
            if entropies:
                entropy_cal[:, block], entropy_dat[:, block] = -_dot(cal, log_cal), -_dot(log_dat.exp(), log_dat)
            calibration[:, block] = _dot(cal, log_cal - log_dat)
        ctx.save_for_backward(points)
        ctx.given, ctx.block_size = given, block_size
        ctx.mark_non_differentiable(entropy_pre, entropy_cal, entropy_dat)
        ctx.set_materialize_grads(False)
        with_prior = (preservation, entropy_pre) if given.pre is not None else (None, None)
        return calibration, *with_prior, *((entropy_cal, entropy_dat) if entropies else (None, None))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: without this error the second derivative would be wrong
            raise RuntimeError(
                "ADC can be differentiated once only: for second derivatives use the functions dcm() and lpm()"
            )
        if gradients[0] is None and gradients[1] is None:
            return (None,) * 4
        (points,) = ctx.saved_tensors
        with torch.autocast(points.device.type, enabled=False):  # a training loop may call backward() inside autocast
            gradient = _gradient(points, ctx.given, ctx.block_size, *gradients[:2])
        return gradient, None, None, None


def _gradient(
    points: Tensor, given: Given, block_size: int, calibration: Tensor | None, preservation: Tensor | None
) -> Tensor:
    """Gradient at the points, from the gradients at each anchor's calibration and preservation."""
    kernel, dim = given.kernel, points.shape[2]
    calibration, preservation = (None if g is None else g.unsqueeze(-1) for g in (calibration, preservation))
    total = torch.stack([g for g in (calibration, preservation) if g is not None]).sum(0)
    kernels = _Kernels(given, points, with_cal=calibration is not None, with_pre=preservation is not None)
    # With A = dL/dD and D = |y_i - y_j|^2: dL/dy_i = 2 sum_j (A_ij + A_ji)(y_i - y_j). A column of ones next to y
    # makes the products with A return the sums of A too.
    y: Tensor = kernels.factors[1][..., : dim + 1].contiguous()
    pulled = torch.zeros_like(y)
    for block in blocks(points.shape[1], block_size):
        base = _base(kernels.factors, block)
        of_prior = kernels.of_prior(block)
        by_log = kernel.log_student(base, block).softmax(-1).mul_(total[:, block])
        if calibration is not None:
            cal = kernels.of_target(base, of_prior, block).softmax(-1)
            by_log.addcmul_(cal.expand_as(by_log), calibration[:, block], value=-1)
        if of_prior is not None and preservation is not None:
            by_log.addcmul_(of_prior.softmax(-1).expand_as(by_log), preservation[:, block], value=-1)
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


def blocks(n: int, size: int) -> Iterator[slice]:
    """Slices of at most this size that cover n anchors."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _dot(p: Tensor, values: Tensor) -> Tensor:
    return (p * values).sum(-1)
