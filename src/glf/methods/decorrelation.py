"""Alignment alone, and methods that constrain the moments of the embeddings of a batch."""

from glf.align.distance import MSE, Cosine, Diagonal, LocalMSE, UnitDistance
from glf.align.mean_view import MeanCosine, MeanDistance
from glf.align.predict import TeacherDistance
from glf.constrain.logdet import CodingRate, LogDeterminants
from glf.constrain.moments import (
    Covariance,
    LocalCovariance,
    LocalVariance,
    Normalise,
    Redundancy,
    SecondMoment,
    Standardise,
    Variance,
)
from glf.constrain.sigreg import SIGReg
from glf.constrain.whiten import Whiten
from glf.nn.heads import Heads
from glf.objective import Method, Objective


def align(weight: float) -> Objective:
    return Objective(align=weight * Cosine())


def barlow_twins(redundancy: float, factor: float) -> Objective:
    return Objective(factor * Diagonal(), factor * redundancy * Redundancy(), transforms=[Standardise()])


def wmse(size: int, rounds: int) -> Objective:
    return Objective(align=UnitDistance(), transforms=[Whiten(size, rounds)])


def vicreg(invariance: float, variance: float, covariance: float) -> Objective:
    # VICReg sums the covariance terms of both views; our term is their mean, hence twice.
    constrain = variance * Variance() + (2 * covariance) * Covariance()
    return Objective(align=invariance * MSE(), constrain=constrain)


def vicregl(invariance: float, variance: float, covariance: float, share: float, first: int, second: int) -> Objective:
    of_z = variance * Variance() + covariance * Covariance()
    local = variance * LocalVariance(first, second) + covariance * LocalCovariance(first, second)
    return Objective(
        align=share * (invariance * MSE()) + (1 - share) * (invariance * LocalMSE(first, second)),
        constrain=share * of_z + (1 - share) * local,
    )


def corinfomax(invariance: float, old: float) -> Objective:
    return Objective(align=invariance * MSE(), constrain=LogDeterminants(old), transforms=[Normalise()])


def lejepa(sigreg: float, slices: int) -> Objective:
    return Objective(align=(1 - sigreg) * MeanDistance(), constrain=sigreg * SIGReg(slices))


def emp(invariance: float, epsilon: float) -> Objective:
    return Objective(align=invariance * MeanCosine(), constrain=CodingRate(epsilon), transforms=[Normalise()])


def tico(covariance: float, old: float) -> Objective:
    align = 0.5 * TeacherDistance()  # 1 - cos
    return Objective(align=align, constrain=covariance * SecondMoment(old), transforms=[Normalise()])


# fmt: off
TABLE = [
    Method(name="align", title="Alignment alone", objective=align,
           paper="the paper's Figure 1: it collapses unless a constraint is added",
           options={"weight": 1.0},
           heads=Heads(projector=(512, 128))),
    Method(name="barlow_twins", title="Barlow Twins", objective=barlow_twins,
           paper="Zbontar et al. 2021, Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
           options={"redundancy": 0.0051, "factor": 1.0}, heads=Heads(projector=(512, 512)), scale=200.0),
    Method(name="wmse", title="W-MSE", objective=wmse,
           paper="Ermolov et al. 2021, Whitening for Self-Supervised Representation Learning",
           options={"size": 128, "rounds": 1}, heads=Heads(projector=(512, 64)), scale=2.0),
    Method(name="vicreg", title="VICReg", objective=vicreg,
           paper="Bardes et al. 2022, VICReg: Variance-Invariance-Covariance Regularization",
           options={"invariance": 25.0, "variance": 25.0, "covariance": 1.0},
           heads=Heads(projector=(512, 512)), scale=10.0),
    Method(name="vicregl", title="VICRegL", objective=vicregl,
           paper="Bardes et al. 2022, VICRegL: Self-Supervised Learning of Local Visual Features",
           options={"invariance": 25.0, "variance": 25.0, "covariance": 1.0, "share": 0.75, "first": 20, "second": 4},
           many_views=False, heads=Heads(projector=(512, 512), local=(128, 128)), scale=10.0,
           architecture="matching of cells without gradient"),
    Method(name="corinfomax", title="CorInfoMax", objective=corinfomax,
           paper="Ozsoy et al. 2022, Self-Supervised Learning with an Information Maximization Criterion",
           options={"invariance": 250.0, "old": 0.01},
           heads=Heads(projector=(512, 512, 64), norm=False), scale=3.0),
    Method(name="lejepa", title="LeJEPA", objective=lejepa,
           paper="Balestriero and LeCun 2025, LeJEPA: Provable and Scalable Self-Supervised Learning Without the"
                 " Heuristics",
           options={"sigreg": 0.05, "slices": 256}, heads=Heads(projector=(512, 512, 64)), scale=0.25),
    Method(name="emp", title="EMP-SSL", objective=emp,
           paper="Tong et al. 2023, EMP-SSL: Towards Self-Supervised Learning in One Training Epoch",
           options={"invariance": 200.0, "epsilon": 0.2}, augment="patches",
           heads=Heads(projector=(512, 512, 128)), scale=30.0),
    Method(name="tico", title="TiCo", objective=tico,
           paper="Zhu et al. 2022, TiCo: Transformation Invariance and Covariance Contrast for Self-Supervised Visual"
                 " Representation Learning",
           options={"covariance": 8.0, "old": 0.9}, heads=Heads(projector=(1024, 256)), ema_momentum=(0.99, 1.0),
           architecture="EMA teacher without gradient", scale=0.25,
           unverified="constants (those of lightly; we found no code of the authors)"),
]
# fmt: on
