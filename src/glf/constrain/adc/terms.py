"""DCM, LPM and their weighted sum ADC as terms, which training uses."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glf.config.adc import AdcOptions, LpmAt
from glf.config.base import nearest, options_of
from glf.constrain.adc.equations import class_mass, dcm, lpm, outlier_weight
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.similarity import off_diagonal
from glf.terms import Banked, Sum, Term
from glf.types import Embeddings, Scalar

LPM_NEEDS: dict[str, frozenset[str]] = {
    "z": frozenset({"z", "prior"}),
    "h": frozenset({"z", "r", "prior"}),
    "bank": frozenset({"z", "r", "prior", "indices"}),
}
TARGET_NEEDS: dict[str, frozenset[str]] = {
    "own": frozenset(),
    "clean": frozenset({"clean"}),
    "memory": frozenset({"clean", "indices"}),
    "centre": frozenset({"clean"}),
    "prior": frozenset({"prior"}),
}


def same_class(
    labels: Int[Tensor, " image"], anchors: Int[Tensor, " anchor"], entries: Int[Tensor, " entry"]
) -> Bool[Tensor, "anchor entry"]:
    """Whether an anchor and an entry, given by their positions in the data set, have the same known class."""
    of_anchors, of_entries = labels[anchors].unsqueeze(1), labels[entries.clamp_min(0)]
    return (of_anchors == of_entries) & (of_anchors >= 0) & (entries >= 0)


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
        self.needs = frozenset({"z", *(["prior"] if weighted else [])}) | TARGET_NEEDS[self.neighbours.target]

    def forward(self, e: Embeddings) -> Scalar:
        ramp = min(1.0, self.epoch / self.ramp_epochs) if self.ramp_epochs else 1.0
        return ramp * self._calibration(e)

    def _calibration(self, e: Embeddings) -> Scalar:
        for name in self.needs:
            e.require(name)
        n = self.neighbours
        if n.reading == "paper":
            weight = outlier_weight(entropy(n.log_pre(e)), reading="paper") if self.weighted else None
            return dcm(n.log_cal(e), n.log_dat(e), weight, reading="paper")
        if n.target == "memory":
            log_cal, log_dat, _ = n.log_over_memory(e)
            return dcm(log_cal, log_dat, self._weight(e))
        calibration, weight = n.divergences(e).calibration, self._weight(e)
        return calibration.mean() if weight is None else (calibration * weight).mean()

    def _weight(self, e: Embeddings) -> Float[Tensor, " anchor"] | None:
        if not self.weighted:
            return None
        of_prior = self.neighbours.divergences(e).entropy_pre
        assert of_prior is not None
        return outlier_weight(of_prior)

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Entropies of ``cal`` and ``dat``, and the share of anchors that DCM sharpens (``dat`` has more entropy)."""
        if self.neighbours.target == "memory":
            cal, dat = (entropy(log_p) for log_p in self.neighbours.log_over_memory(e)[:2])
        else:
            cal, dat, _ = self.neighbours.entropies(e)
        sharpens = (dat > cal).to(cal.dtype).mean()
        return {"entropy/cal": cal.mean(), "entropy/dat": dat.mean(), "sharpens/dcm": sharpens}

    def class_masses(self, e: Embeddings, labels: Int[Tensor, " image"]) -> dict[str, Tensor]:
        """Probability of the anchors' own classes in ``cal`` and ``dat``; ``labels`` are those of the data set."""
        n, indices = self.neighbours, e.require("indices")
        if n.target == "memory":
            log_cal, log_dat, entries = n.log_over_memory(e)
            same = same_class(labels, indices, entries)
        else:
            log_cal, log_dat, same = n.log_cal(e), n.log_dat(e), off_diagonal(same_class(labels, indices, indices))
        return {"cal": class_mass(log_cal, same), "dat": class_mass(log_dat, same)}


class LPM(Banked):
    """Local preservation: neighbours in the prior's feature space stay neighbours.

    ``at`` says whose rows are compared with the prior's: ``z``, among the images of the batch; ``h``, a linear head on
    the backbone's features, among the batch; ``bank``, that head against the prior's features of many images
    (``set_bank``), so that an anchor sees its true neighbours, which are rarely in its batch.
    """

    name, role, formula = "lpm", "constrain", "-sum_j P_prior(j) log P_t(j)"
    reads_raw = True

    def __init__(self, *, neighbours: NeighbourDistributions | None = None, at: LpmAt = "z") -> None:
        super().__init__()
        self.neighbours, self.at = neighbours or NeighbourDistributions(), at
        if at not in LPM_NEEDS:
            raise ValueError(f"unknown {at!r}{nearest(at, LPM_NEEDS)} (LPM reads one of {', '.join(LPM_NEEDS)})")
        if at == "bank" and self.neighbours.reading == "paper":
            raise ValueError("reading='paper' has no bank: the paper compares the images of a batch")
        self.needs = LPM_NEEDS[at]

    @property
    def reads_bank(self) -> bool:
        return self.at == "bank"

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

    def class_masses(self, e: Embeddings, labels: Int[Tensor, " image"]) -> dict[str, Tensor]:
        """Probability of the anchors' own classes in ``dat`` and ``pre``; ``labels`` are those of the data set."""
        indices = e.require("indices")
        if self.at == "bank":
            assert self.bank_indices is not None
            log_dat, log_pre = self._over_bank(e)
            same = same_class(labels, indices, self.bank_indices)
        else:
            read = self._read(e)
            log_dat, log_pre = self.neighbours.log_dat(read), self.neighbours.log_pre(read)
            same = off_diagonal(same_class(labels, indices, indices))
        return {"dat": class_mass(log_dat, same), "pre": class_mass(log_pre, same)}

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

    @options_of(AdcOptions)
    def __init__(self, options: AdcOptions) -> None:
        neighbours = NeighbourDistributions.from_options(options)
        at, own = options.lpm_at or "z", neighbours
        if at != "z":  # at z, DCM and LPM share what they compute; elsewhere LPM has a running covariance of its own
            own = NeighbourDistributions.from_options(replace(options, target=None))
        calibration = DCM(weighted=True, ramp_epochs=options.ramp_epochs, neighbours=neighbours)
        super().__init__((options.nu, calibration), (options.lpm_weight, LPM(neighbours=own, at=at)))
        vars(self).update(vars(options.resolved()))  # for repr
