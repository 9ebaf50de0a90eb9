"""ADC: the paper's constraint, made of DCM (distribution calibration) and LPM (local preservation).

Every anchor i sees the other samples of its view through three rows, each a distribution over j != i: ``cal``
(Gaussian kernel of z), ``dat`` (Student-t kernel of z) and ``pre`` (Student-t kernel of the frozen prior's
features). DCM asks dat to follow cal; LPM asks dat to follow pre. See docs/equations.md.

``dcm`` and ``lpm`` are the equations, on whole rows. The terms compute the same numbers in pairwise.py, without ever
holding a row of every anchor; only the paper's reading, which is for study, goes through whole rows.
"""

import math

from jaxtyping import Float
from torch import Tensor

from glf.config.training import CovarianceKind, Reading, TScale
from glf.constrain.adc import kernels
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.terms import Sum, Term
from glf.types import Embeddings, Scalar

FLOOR = 1e-8  # on P_data, P_pre and H in the paper's reading, whose logarithms and quotients are unbounded


def dcm(
    log_cal: Float[Tensor, "view anchor other"],
    log_dat: Float[Tensor, "view anchor other"],
    weight: Float[Tensor, " anchor"] | None = None,
    *,
    reading: Reading = "calibrated",
) -> Scalar:
    r"""Distribution calibration: KL from the Gaussian rows, held fixed by the caller, to the t rows.

    .. math:: \frac{1}{n} \sum_i w_i \sum_{j \ne i} p_{cal}^i(j) \log \frac{p_{cal}^i(j)}{p_{dat}^i(j)}

    Reference: Eq. 12, and Eq. 17 with weights. Differs from the paper: a mean over anchors, not a sum, so that
    nu does not depend on the batch (``reading="paper"`` sums); the mean over views.

    >>> import torch
    >>> row = torch.tensor([[[0.5, 0.5]]])
    >>> round(float(dcm(row.log(), torch.tensor([[[0.25, 0.75]]]).log())), 4)  # log(2)/2 + log(2/3)/2
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
    concentration: float = 1.0,
    reading: Reading = "calibrated",
) -> Scalar:
    r"""Local preservation: the negative log-density of a Dirichlet whose mode is the prior's row.

    .. math:: -\frac{1}{n} \sum_i c \sum_{j \ne i} P_{pre}^i(j) \log P_{dat}^i(j)

    Reference: Eq. 16. Differs from the paper: a loss to minimise, as a mean over anchors. The printed
    :math:`\mathrm{Dir}(\beta | \alpha)` with :math:`\sum \alpha = 1` has only negative exponents, so it is
    unbounded at the corners and *smallest* near alpha; the parameters :math:`1 + c\alpha` put the mode at alpha,
    which is what the text asks for. ``reading="paper"`` returns the printed density's negative logarithm, summed
    over anchors.

    >>> import torch
    >>> row = torch.tensor([[0.5, 0.5]]).log()
    >>> round(float(lpm(row.unsqueeze(0), row)), 4)  # the entropy of the row
    0.6931
    """
    if reading == "calibrated":
        return -concentration * (log_pre.exp() * log_dat).sum(-1).mean()
    alpha = log_pre.exp().clamp_min(FLOOR)
    log_beta = log_dat.clamp_min(math.log(FLOOR))
    log_density = alpha.sum(-1).lgamma() - alpha.lgamma().sum(-1) + ((alpha - 1) * log_beta).sum(-1)
    return -log_density.sum(-1).mean()


def outlier_weight(entropy: Float[Tensor, " anchor"], *, reading: Reading = "calibrated") -> Float[Tensor, " anchor"]:
    r"""Anchors whose neighbourhood the prior finds flat count less: they are likely outliers.

    .. math:: w_i \propto 1 / \max(H(P_{pre}^i), 0.1 \log(n - 1)), \quad \bar w = 1

    Reference: Eq. 17. Differs from the paper: the weight stands inside the sum over anchors; it is rescaled to
    mean 1 so that nu keeps its meaning; the entropy has a floor, without which one duplicated image in a batch
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
    """Distribution calibration; with ``weighted``, anchors that the prior finds to be outliers count less.

    Over the first ``ramp_epochs`` its weight rises from zero, in proportion to the epochs that ``at`` was told of.
    """

    name, role, formula = "dcm", "constrain", "KL(Gaussian row || t row)"
    reads_raw = True

    def __init__(
        self, *, weighted: bool = False, ramp_epochs: float = 0.0, rows: NeighbourDistributions | None = None
    ) -> None:
        super().__init__()
        if ramp_epochs < 0:
            raise ValueError(f"ramp_epochs is a number of epochs, not {ramp_epochs}")
        self.weighted, self.ramp_epochs, self.rows = weighted, ramp_epochs, rows or NeighbourDistributions()
        self.needs = frozenset({"z", "prior"}) if weighted else frozenset({"z"})

    def forward(self, e: Embeddings) -> Scalar:
        share = min(1.0, self.epoch / self.ramp_epochs) if self.ramp_epochs else 1.0
        return share * self._calibration(e)

    def _calibration(self, e: Embeddings) -> Scalar:
        rows = self.rows
        if self.weighted:
            e.require("prior")
        if rows.reading == "paper":
            weight = outlier_weight(kernels.entropy(rows.pre(e)), reading="paper") if self.weighted else None
            return dcm(rows.cal(e), rows.dat(e), weight, reading="paper")
        found = rows.divergences(e)
        if not self.weighted:
            return found.calibration.mean()
        assert found.entropy_pre is not None
        return (found.calibration * outlier_weight(found.entropy_pre)).mean()

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Entropies of the rows, and the share of anchors that DCM sharpens (their t row is the flatter)."""
        cal, dat, _ = _entropies(self.rows, e)
        sharpens = (dat > cal).to(cal.dtype).mean()
        return {"entropy/cal": cal.mean(), "entropy/dat": dat.mean(), "sharpens/dcm": sharpens}


class LPM(Term):
    """Local preservation: neighbours in the prior's space stay neighbours."""

    name, role, formula = "lpm", "constrain", "-sum_j P_prior(j) log P_t(j)"
    needs = frozenset({"z", "prior"})
    reads_raw = True

    def __init__(self, *, concentration: float = 1.0, rows: NeighbourDistributions | None = None) -> None:
        super().__init__()
        self.concentration, self.rows = concentration, rows or NeighbourDistributions()

    def forward(self, e: Embeddings) -> Scalar:
        e.require("prior")
        if self.rows.reading == "paper":
            return lpm(self.rows.dat(e), self.rows.pre(e), reading="paper")
        preservation = self.rows.divergences(e).preservation
        assert preservation is not None
        return self.concentration * preservation.mean()

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Entropies of the rows: the first thing to look at when LPM does nothing."""
        _, dat, pre = _entropies(self.rows, e)
        assert pre is not None
        return {"entropy/dat": dat.mean(), "entropy/pre": pre.mean()}


def _entropies(rows: NeighbourDistributions, e: Embeddings) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of the Gaussian rows, the t rows and the prior's."""
    if rows.reading == "paper":
        pre = None if e.prior is None else kernels.entropy(rows.pre(e))
        return kernels.entropy(rows.cal(e)), kernels.entropy(rows.dat(e)), pre
    found = rows.divergences(e, entropies=True)
    assert found.entropy_cal is not None
    assert found.entropy_dat is not None
    return found.entropy_cal, found.entropy_dat, found.entropy_pre


class ADC(Sum):
    r"""Adaptive distribution calibration: nu DCM, weighted against outliers, + upsilon LPM.

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
        nu: float = 0.3,
        upsilon: float = 1.0,
        *,
        rho: float = 5.0,
        effective_dim: float = 8.0,
        prior_effective_dim: float = 16.0,
        concentration: float = 1.0,
        ramp_epochs: float = 0.0,
        t_scale: TScale = "printed",
        reading: Reading = "calibrated",
        covariance: CovarianceKind | None = None,
    ) -> None:
        rows = NeighbourDistributions(
            rho=rho,
            effective_dim=effective_dim,
            prior_effective_dim=prior_effective_dim,
            t_scale=t_scale,
            reading=reading,
            covariance=covariance,
        )
        calibration = DCM(weighted=True, ramp_epochs=ramp_epochs, rows=rows)
        super().__init__((nu, calibration), (upsilon, LPM(concentration=concentration, rows=rows)))
        self.nu, self.upsilon, self.concentration, self.ramp_epochs = nu, upsilon, concentration, ramp_epochs
        self.rho, self.effective_dim, self.prior_effective_dim = rho, effective_dim, prior_effective_dim
        self.t_scale, self.reading, self.covariance = t_scale, reading, covariance
