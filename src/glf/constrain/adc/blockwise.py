"""What ADC needs of all pairs, in one pass over blocks of anchors.

The rows of kernels.py are n x n matrices, and automatic differentiation would keep a dozen of them. Here a block of
anchors meets all samples and leaves a few numbers per anchor; backward meets them again. Memory grows with n x block,
and a block is small enough to stay near the processor. The numbers are those of ``adc.dcm`` and ``adc.lpm`` on whole
rows, up to the order of summation.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

NEVER = -1e30  # the logarithm of no probability; finite, so that zero times it is zero
BLOCK_ON_CPU, BLOCK_ON_GPU = 2**21, 2**25  # entries of a block, all views together
PerAnchor = Float[Tensor, "view anchor"]


class Student(NamedTuple):
    r"""A Student-t kernel of squared distances: its logarithm is :math:`-a \log(1 + b D)`.

    One matrix product gives the base 1 + bD, of which the Gaussian kernel is a function too.
    """

    power: float
    slope: float

    def sides(self, y: Float[Tensor, "*view anchor dim"]) -> tuple[Tensor, Tensor]:
        """Rows u and v with u_i . v_j = 1 + b |y_i - y_j|^2: the squares come in by two more columns.

        The samples are centred first: distances do not change, and a common offset would cost all the digits.
        """
        y = y - y.mean(-2, keepdim=True)
        square, one = self.slope * y.pow(2).sum(-1, keepdim=True), torch.ones_like(y[..., :1])
        return torch.cat((-2 * self.slope * y, square + 1, one), -1), torch.cat((y, one, square), -1)

    def student(self, base: Tensor, rows: slice) -> Tensor:
        return _without_anchor(base.log().mul_(-self.power), rows)

    def gaussian(self, base: Tensor, rows: slice) -> Tensor:
        return _without_anchor(base * (-0.5 / self.slope), rows)  # -D/2, up to a constant of the row


class Divergences(NamedTuple):
    """What each anchor's rows have to say. The entropies have no gradient."""

    calibration: PerAnchor  # KL from the Gaussian row, held fixed, to the t row
    preservation: PerAnchor | None  # cross-entropy of the t row under the prior's row
    entropy_pre: Float[Tensor, " anchor"] | None
    entropy_cal: PerAnchor | None
    entropy_dat: PerAnchor | None


def divergences(
    points: Float[Tensor, "view anchor dim"],
    student: Student,
    prior: Float[Tensor, "anchor width"] | None = None,
    prior_student: Student | None = None,
    *,
    entropies: bool = False,
    block: int | None = None,
) -> Divergences:
    """One pass. Squared distances of ``points`` are those of the Gaussian rows; the prior has no gradient.

    ``entropies`` asks for those of z's own rows too, which the loss does not need.
    """
    found = _Divergences.apply(points, prior, student, prior_student, entropies, block or _block(points))
    return Divergences(*found)


def _block(points: Tensor) -> int:
    views, n, _ = points.shape
    entries = BLOCK_ON_CPU if points.device.type == "cpu" else BLOCK_ON_GPU
    return max(1, min(n, entries // (views * n)))


class _Divergences(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        points: Tensor,
        prior: Tensor | None,
        kernel: Student,
        prior_kernel: Student | None,
        entropies: bool,
        block: int,
    ) -> tuple[Tensor | None, ...]:
        sides = kernel.sides(points)
        outlook = None if prior is None or prior_kernel is None else prior_kernel.sides(prior)
        calibration, preservation, entropy_cal, entropy_dat = points.new_empty(4, *points.shape[:2])
        entropy_pre = points.new_empty(points.shape[1])
        for rows in _blocks(points.shape[1], block):
            base = _base(sides, rows)
            log_cal = kernel.gaussian(base, rows).log_softmax(-1)
            log_dat = kernel.student(base, rows).log_softmax(-1)
            if outlook is not None and prior_kernel is not None:
                log_pre = prior_kernel.student(_base(outlook, rows), rows).log_softmax(-1)
                pre = log_pre.exp()
                entropy_pre[rows] = -_dot(pre, log_pre)
                preservation[:, rows] = -_dot(pre, log_dat)
            cal = log_cal.exp()
            if entropies:
                entropy_cal[:, rows], entropy_dat[:, rows] = -_dot(cal, log_cal), -_dot(log_dat.exp(), log_dat)
            calibration[:, rows] = _dot(cal, log_cal.sub_(log_dat))
        ctx.save_for_backward(points, prior)
        ctx.kernel, ctx.prior_kernel, ctx.block = kernel, prior_kernel, block
        ctx.mark_non_differentiable(entropy_pre, entropy_cal, entropy_dat)
        ctx.set_materialize_grads(False)
        about_prior = (preservation, entropy_pre) if outlook is not None else (None, None)
        return calibration, *about_prior, *((entropy_cal, entropy_dat) if entropies else (None, None))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: silence would mean a wrong second derivative
            raise RuntimeError("ADC can be differentiated once only: use the functions dcm() and lpm() on whole rows")
        if gradients[0] is None and gradients[1] is None:
            return (None,) * 6
        points, prior = ctx.saved_tensors
        with torch.autocast(points.device.type, enabled=False):  # a loop may call backward() inside its own
            gradient = _gradient(ctx, points, prior, *gradients[:2])
        return gradient, None, None, None, None, None


def _gradient(
    ctx: Any, points: Tensor, prior: Tensor | None, calibration: Tensor | None, preservation: Tensor | None
) -> Tensor:
    """The gradient at the points, from those at each anchor's two divergences."""
    kernel, prior_kernel, dim = ctx.kernel, ctx.prior_kernel, points.shape[2]
    calibration, preservation = (None if g is None else g.unsqueeze(-1) for g in (calibration, preservation))
    total = torch.stack([g for g in (calibration, preservation) if g is not None]).sum(0)
    sides = kernel.sides(points)
    outlook = None if preservation is None else prior_kernel.sides(prior)
    # With A = dL/dD and D = |y_i - y_j|^2: dL/dy_i = 2 sum_j (A_ij + A_ji)(y_i - y_j). A column of ones beside y
    # makes the products with A give the sums of A too.
    y: Tensor = sides[1][..., : dim + 1].contiguous()
    pulled = torch.zeros_like(y)
    for rows in _blocks(points.shape[1], ctx.block):
        base = _base(sides, rows)
        by_log = kernel.student(base, rows).softmax(-1).mul_(total[:, rows])
        if calibration is not None:
            by_log.addcmul_(kernel.gaussian(base, rows).softmax(-1), calibration[:, rows], value=-1)
        if outlook is not None and preservation is not None:
            pre = prior_kernel.student(_base(outlook, rows), rows).softmax(-1)
            by_log.addcmul_(pre.expand_as(by_log), preservation[:, rows], value=-1)
        by_distance = by_log.div_(base)  # up to the factor at the end
        pulled[:, rows] += torch.bmm(by_distance, y)
        pulled.baddbmm_(by_distance.transpose(1, 2), y[:, rows])
    factor: float = -2 * kernel.power * kernel.slope
    return factor * (pulled[..., dim:] * y[..., :dim] - pulled[..., :dim])


def _base(sides: tuple[Tensor, Tensor], rows: slice) -> Tensor:
    return (sides[0][..., rows, :] @ sides[1].transpose(-1, -2)).clamp_min_(1)


def _without_anchor(kernel: Tensor, rows: slice) -> Tensor:
    kernel.diagonal(rows.start, -2, -1).fill_(NEVER)
    return kernel


def _blocks(n: int, block: int) -> Iterator[slice]:
    return (slice(start, min(start + block, n)) for start in range(0, n, block))


def _dot(row: Tensor, other: Tensor) -> Tensor:
    return (row * other).sum(-1)
