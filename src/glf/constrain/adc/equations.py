"""The equations of DCM and LPM as functions.

Each anchor i has three distributions over the other images j != i of its batch, within one view:

- ``cal``: Gaussian kernel of z, or another target (targets.py),
- ``dat``: Student-t kernel of z,
- ``pre``: Student-t kernel of the prior's features (the prior is a frozen reference encoder).

DCM moves ``dat`` towards ``cal``, LPM moves ``dat`` towards ``pre``. How one value of LPM comes about:

1. z on the unit sphere, scaled (``NeighbourDistributions._points`` in neighbours.py),
2. squared distances D (``squared_distances`` in kernels.py),
3. the Student-t kernel of D (``log_student`` in kernels.py; a change needs ``StudentKernel`` and ``_gradient`` in
   blockwise.py too),
4. normalised over the other images (``normalise_over_others`` in neighbours.py): ``dat``,
5. the same of the prior's features: ``pre``,
6. the cross-entropy of both, averaged over anchors and views: ``lpm`` below.

The functions ``dcm`` and ``lpm`` take whole matrices. The terms in terms.py, which training uses, compute the same
values in blockwise.py, in less memory; only ``reading="paper"``, which is for comparison, and distributions over a
bank or a memory use whole matrices. docs/equations.md lists both readings.
"""

import math

from jaxtyping import Bool, Float
from torch import Tensor

from glf.config.adc import AdcOptions, Reading
from glf.types import Scalar

FLOOR = 1e-8  # on P_dat, P_pre and H in the paper's reading, which takes their logarithms and reciprocals


def dcm(
    log_cal: Float[Tensor, "view anchor other"],
    log_dat: Float[Tensor, "view anchor other"],
    weight: Float[Tensor, " anchor"] | None = None,
    *,
    reading: Reading = AdcOptions.reading,
) -> Scalar:
    r"""Distribution calibration: KL divergence from ``cal`` (detached by the caller) to ``dat``.

    .. math:: \frac{1}{n} \sum_i w_i \sum_{j \ne i} p_{cal}^i(j) \log \frac{p_{cal}^i(j)}{p_{dat}^i(j)}

    Reference: Eq. 12, and Eq. 17 with weights. Differs from the paper: a mean over anchors, not a sum, so that
    nu does not depend on the batch size (``reading="paper"`` sums); the mean over views.

    >>> import torch
    >>> cal = torch.tensor([[[0.5, 0.5]]])
    >>> round(float(dcm(cal.log(), torch.tensor([[[0.25, 0.75]]]).log())), 4)  # log(2)/2 + log(2/3)/2
    0.1438
    """
    divergence = (log_cal.exp() * (log_cal - log_dat)).sum(-1)
    if weight is not None:
        divergence = divergence * weight
    return divergence.mean() if reading == "calibrated" else divergence.sum(-1).mean()


def lpm(
    log_dat: Float[Tensor, "view anchor other"],
    log_pre: Float[Tensor, "anchor other"],
    *,
    reading: Reading = AdcOptions.reading,
) -> Scalar:
    r"""Local preservation: cross-entropy of ``dat`` under the prior's neighbour distribution ``pre``.

    .. math:: -\frac{1}{n} \sum_i \sum_{j \ne i} P_{pre}^i(j) \log P_{dat}^i(j)

    Up to a constant this is the negative log-density of a Dirichlet distribution with mode ``pre``.

    Reference: Eq. 16. Differs from the paper: a loss to minimise, as a mean over anchors. The printed
    :math:`\mathrm{Dir}(\beta | \alpha)` with :math:`\sum \alpha = 1` has only negative exponents, so it is
    unbounded at the corners and *smallest* near alpha; the parameters :math:`1 + \alpha` put the mode at alpha,
    which is what the text asks for. A concentration c in :math:`1 + c\alpha` would only multiply upsilon.
    ``reading="paper"`` returns the printed density's negative logarithm, summed over anchors.

    >>> import torch
    >>> pre = torch.tensor([[0.5, 0.5]]).log()
    >>> round(float(lpm(pre.unsqueeze(0), pre)), 4)  # the entropy of pre
    0.6931
    """
    if reading == "calibrated":
        return -(log_pre.exp() * log_dat).sum(-1).mean()
    alpha = log_pre.exp().clamp_min(FLOOR)
    log_beta = log_dat.clamp_min(math.log(FLOOR))
    log_density = alpha.sum(-1).lgamma() - alpha.lgamma().sum(-1) + ((alpha - 1) * log_beta).sum(-1)
    return -log_density.sum(-1).mean()


def class_mass(log_p: Float[Tensor, "*view anchor entry"], same: Bool[Tensor, "anchor entry"]) -> Scalar:
    r"""Mean probability that neighbour distributions give to images of the anchor's own class.

    .. math:: \frac{1}{n} \sum_i \sum_j p_i(j) [y_j = y_i]

    >>> import torch
    >>> float(class_mass(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[False, True]])))
    0.75
    """
    return (log_p.exp() * same).sum(-1).mean()


def outlier_weight(
    entropy: Float[Tensor, " anchor"], *, reading: Reading = AdcOptions.reading
) -> Float[Tensor, " anchor"]:
    r"""Weights of anchors in DCM: likely outliers, with a nearly uniform ``pre``, count less.

    .. math:: w_i \propto 1 / \max(H(P_{pre}^i), 0.1 \log(n - 1)), \quad \bar w = 1

    Reference: Eq. 17. Differs from the paper: the weight is inside the sum over anchors; it is rescaled to
    mean 1 so that nu keeps its meaning; the entropy has a floor, because without it one duplicated image in a batch
    takes the whole weight (with it, at most 10). ``reading="paper"`` returns 1/H.

    >>> import torch
    >>> outlier_weight(torch.tensor([0.5, 1.0, 1.0])).tolist()
    [1.5, 0.75, 0.75]
    """
    if reading == "paper":
        return 1 / entropy.clamp_min(FLOOR)
    floor = max(0.1 * math.log(len(entropy) - 1), FLOOR)  # two images: one other, no entropy, equal weights
    weight = 1 / entropy.clamp_min(floor)
    return weight / weight.mean()
