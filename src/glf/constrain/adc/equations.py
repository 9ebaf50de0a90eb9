"""DCM, LPM and ADC: the equations as functions, and the terms that training uses.

Each anchor i has three distributions over the other images j != i of its batch, within one view:

- ``cal``: Gaussian kernel of z,
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

The functions ``dcm`` and ``lpm`` take whole matrices. The terms compute the same values in blockwise.py, in less
memory; only ``reading="paper"``, which is for comparison, uses whole matrices. docs/equations.md lists both readings.
"""

import copy
import inspect
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glf.config.adc import AdcOptions, CovarianceKind, LpmAt, Reading, TScale
from glf.config.base import nearest
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.terms import Sum, Term
from glf.types import Embeddings, Scalar

LPM_NEEDS: dict[str, frozenset[str]] = {
    "z": frozenset({"z", "prior"}),
    "h": frozenset({"z", "r", "prior"}),
    "bank": frozenset({"z", "r", "prior", "indices"}),
}
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


class DCM(Term):
    """Distribution calibration; with ``weighted``, anchors that the prior considers outliers count less.

    Over the first ``ramp_epochs`` epochs the weight rises linearly from zero (``set_epoch``).
    """

    name, role, formula = "dcm", "constrain", "KL(P_Gaussian || P_t) of neighbours"
    reads_raw = True

    def __init__(
        self,
        *,
        weighted: bool = False,
        ramp_epochs: float = AdcOptions.ramp_epochs,
        neighbours: NeighbourDistributions | None = None,
    ) -> None:
        super().__init__()
        if ramp_epochs < 0:
            raise ValueError(f"ramp_epochs must not be negative, got {ramp_epochs}")
        self.weighted, self.ramp_epochs = weighted, ramp_epochs
        self.neighbours = neighbours or NeighbourDistributions()
        self.needs = frozenset({"z", "prior"}) if weighted else frozenset({"z"})

    def forward(self, e: Embeddings) -> Scalar:
        ramp = min(1.0, self.epoch / self.ramp_epochs) if self.ramp_epochs else 1.0
        return ramp * self._calibration(e)

    def _calibration(self, e: Embeddings) -> Scalar:
        if self.weighted:
            e.require("prior")
        n = self.neighbours
        if n.reading == "paper":
            weight = outlier_weight(entropy(n.log_pre(e)), reading="paper") if self.weighted else None
            return dcm(n.log_cal(e), n.log_dat(e), weight, reading="paper")
        found = n.divergences(e)
        if not self.weighted:
            return found.calibration.mean()
        assert found.entropy_pre is not None
        return (found.calibration * outlier_weight(found.entropy_pre)).mean()

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Entropies of ``cal`` and ``dat``, and the share of anchors that DCM sharpens (``dat`` has more entropy)."""
        cal, dat, _ = self.neighbours.entropies(e)
        sharpens = (dat > cal).to(cal.dtype).mean()
        return {"entropy/cal": cal.mean(), "entropy/dat": dat.mean(), "sharpens/dcm": sharpens}


class LPM(Term):
    """Local preservation: neighbours in the prior's feature space stay neighbours.

    ``at`` says whose rows are compared with the prior's: ``z``, among the images of the batch; ``h``, a linear head on
    the backbone's features, among the batch; ``bank``, that head against the prior's features of many images
    (``set_bank``), so that an anchor sees its true neighbours, which are rarely in its batch.
    """

    name, role, formula = "lpm", "constrain", "-sum_j P_prior(j) log P_t(j)"
    reads_raw = True
    bank: Tensor | None
    bank_indices: Tensor | None

    def __init__(self, *, neighbours: NeighbourDistributions | None = None, at: LpmAt = "z") -> None:
        super().__init__()
        self.neighbours, self.at = neighbours or NeighbourDistributions(), at
        if at not in LPM_NEEDS:
            raise ValueError(f"unknown {at!r}{nearest(at, LPM_NEEDS)} (LPM reads one of {', '.join(LPM_NEEDS)})")
        if at == "bank" and self.neighbours.reading == "paper":
            raise ValueError("reading='paper' has no bank: the paper compares the images of a batch")
        self.needs = LPM_NEEDS[at]
        self.register_buffer("bank", None, persistent=False)
        self.register_buffer("bank_indices", None, persistent=False)

    def set_bank(self, prior: Float[Tensor, "entry width"], indices: Int[Tensor, " entry"]) -> None:
        """Set the prior's features of the bank's images, and the positions of these images in the data set."""
        self.bank, self.bank_indices = prior, indices

    def forward(self, e: Embeddings) -> Scalar:
        e.require("prior")
        n = self.neighbours
        if self.at == "bank":
            return lpm(*self._over_bank(e))
        e = self._read(e)
        if n.reading == "paper":
            return lpm(n.log_dat(e), n.log_pre(e), reading="paper")
        preservation = n.divergences(e).preservation
        assert preservation is not None
        return preservation.mean()

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Entropies of ``dat`` and ``pre``: look here first when LPM has no effect."""
        if self.at == "bank":
            dat, pre = (entropy(rows) for rows in self._over_bank(e))
        else:
            _, dat, of_prior = self.neighbours.entropies(self._read(e))
            assert of_prior is not None
            pre = of_prior
        return {"entropy/dat": dat.mean(), "entropy/pre": pre.mean()}

    def _read(self, e: Embeddings) -> Embeddings:
        return Embeddings(z=e.require("r"), prior=e.prior) if self.at == "h" else e

    def _over_bank(self, e: Embeddings) -> tuple[Tensor, Tensor]:
        """``dat`` and ``pre`` of each anchor over the images of the bank, as log-distributions."""
        if self.bank is None or self.bank_indices is None:
            raise ValueError("LPM at 'bank' needs the prior's features of the data set: call set_bank() first")
        itself = e.require("indices").unsqueeze(1) == self.bank_indices.unsqueeze(0)
        rows = torch.cat((e.require("r"), e.require("prior").detach().unsqueeze(0)))
        found = self.neighbours.log_over_bank(rows, self.bank, itself)
        return found[:-1], found[-1]


class ADC(Sum):
    r"""Adaptive distribution calibration: nu times DCM, weighted against outliers, plus upsilon times LPM.

    .. math:: \nu L_{DCM} + \upsilon L_{LPM}

    Reference: Eq. 18. Differs from the paper: LPM is a loss to minimise here, hence the plus.

    >>> import torch
    >>> z0, z1, prior = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> bool(ADC()(z0, z1, prior=prior).isfinite())
    True
    """

    name, formula = "adc", "nu dcm + upsilon lpm"

    def __init__(
        self,
        nu: float = AdcOptions.nu,
        upsilon: float = AdcOptions.upsilon,
        *,
        rho: float = AdcOptions.rho,
        effective_dim: float = AdcOptions.effective_dim,
        prior_effective_dim: float = AdcOptions.prior_effective_dim,
        ramp_epochs: float = AdcOptions.ramp_epochs,
        t_scale: TScale = AdcOptions.t_scale,
        reading: Reading = AdcOptions.reading,
        covariance: CovarianceKind | None = AdcOptions.covariance,
        lpm_at: LpmAt | None = AdcOptions.lpm_at,
    ) -> None:
        neighbours = NeighbourDistributions(
            rho=rho,
            effective_dim=effective_dim,
            prior_effective_dim=prior_effective_dim,
            t_scale=t_scale,
            reading=reading,
            covariance=covariance,
        )
        calibration = DCM(weighted=True, ramp_epochs=ramp_epochs, neighbours=neighbours)
        # A running covariance is that of z: LPM elsewhere has its own.
        own = neighbours if lpm_at in (None, "z") else copy.deepcopy(neighbours)
        super().__init__((nu, calibration), (upsilon, LPM(neighbours=own, at=lpm_at or "z")))
        self.nu, self.upsilon, self.ramp_epochs = nu, upsilon, ramp_epochs
        self.rho, self.effective_dim, self.prior_effective_dim = rho, effective_dim, prior_effective_dim
        self.t_scale, self.reading, self.covariance, self.lpm_at = t_scale, reading, covariance, lpm_at

    @classmethod
    def from_options(cls, options: AdcOptions) -> "ADC":
        """Built from the options of the same names."""
        return cls(**{name: getattr(options, name) for name in inspect.signature(cls).parameters})
