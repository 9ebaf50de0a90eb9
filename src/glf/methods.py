"""The methods table, and the constraints that can be added to any method with a plus: ``byol+adc``.

Each method pairs an aligning with a constraining part. Its entry also names the heads, the augmentation policy of the
paper, and constraints outside the loss. ``scale`` multiplies an added constraint, because losses differ in size: with
it, the default nu and upsilon give ADC 30 to 55 % of the gradient at z for nearly every method (means over three to six
epochs on fashion-mini).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from glf.align.distance import MSE, Cosine, Diagonal, LocalMSE, UnitDistance
from glf.align.metaug import UnifiedMatch
from glf.align.predict import MatchTeacher, PredictTeacher, PredictTeacherCosine, PredictView
from glf.align.relations import ClusterMatch, Invariance, Relation, SwappedPrediction
from glf.align.supervised import ClassScore, SameClass
from glf.config.adc import AdcOptions
from glf.config.base import nearest
from glf.constrain import contrast as K
from glf.constrain.adc import ADC, DCM, LPM
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.constrain.logdet import CodingLength, LogDeterminants
from glf.constrain.metaug import UnifiedPartition
from glf.constrain.moments import (
    Covariance,
    LocalCovariance,
    LocalVariance,
    Normalise,
    Redundancy,
    Standardise,
    Variance,
)
from glf.constrain.sinkhorn import Codes
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS, MatchDistribution
from glf.constrain.whiten import Whiten
from glf.nn.heads import Heads
from glf.nn.memory import Clusters
from glf.objective import Method, Objective
from glf.terms import Term


def _match(name: str) -> Callable[[AdcOptions], Term]:
    return lambda o: TARGET_DISTRIBUTIONS[name].weight * MatchDistribution(name)


CONSTRAINTS: dict[str, Callable[[AdcOptions], Term]] = {
    "dcm": lambda o: o.nu * DCM(ramp_epochs=o.ramp_epochs, neighbours=NeighbourDistributions.from_options(o)),
    "lpm": lambda o: (
        o.upsilon * LPM(neighbours=NeighbourDistributions.from_options(replace(o, target=None)), at=o.lpm_at or "z")
    ),
    "adc": ADC.from_options,
    **{name: _match(name) for name in TARGET_DISTRIBUTIONS},
}


def align(weight: float) -> Objective:
    return Objective(align=weight * Cosine())


def simclr(temperature: float) -> Objective:
    return Objective(align=Cosine(temperature), constrain=K.LogPartition(temperature))


def moco(temperature: float, queue: int) -> Objective:
    constrain = K.QueuePartition(temperature)
    return Objective(align=MatchTeacher(temperature), constrain=constrain, transforms=[K.FromQueue(queue)])


def simsiam() -> Objective:
    return Objective(align=PredictView())


def byol() -> Objective:
    return Objective(align=2 * PredictTeacher())  # BYOL sums both directions; the term is their mean


def barlow_twins(redundancy: float, factor: float) -> Objective:
    return Objective(factor * Diagonal(), factor * redundancy * Redundancy(), transforms=[Standardise()])


def swav(temperature: float, sharpness: float, rounds: int, queue: int, queue_epoch: float) -> Objective:
    codes = Codes(sharpness=sharpness, rounds=rounds, queue=queue, queue_epoch=queue_epoch)
    return Objective(SwappedPrediction(temperature), K.PrototypePartition(temperature), transforms=[codes])


def wmse(size: int, rounds: int) -> Objective:
    return Objective(align=UnitDistance(), transforms=[Whiten(size, rounds)])


def ressl(temperature: float, sharp: float, queue: int) -> Objective:
    constrain = K.RelationPartition(temperature)
    return Objective(Relation(temperature, sharp), constrain, transforms=[K.FromQueue(queue)])


def mec(distortion: float, order: int, warmup: float) -> Objective:
    return Objective(align=PredictTeacherCosine(), constrain=CodingLength(distortion, order, warmup))


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


def relicv2(temperature: float, invariance: float) -> Objective:
    """ReLIC with v2's stop-gradient in the invariance term; without v2's saliency masks."""
    align = MatchTeacher(temperature) + invariance * Invariance(temperature)
    return Objective(align=align, constrain=K.TeacherPartition(temperature))


def dcl(temperature: float, same: float) -> Objective:
    return Objective(align=Cosine(temperature), constrain=K.DebiasedPartition(temperature, same))


def hcl(temperature: float, same: float, hardness: float) -> Objective:
    return Objective(align=Cosine(temperature), constrain=K.DebiasedPartition(temperature, same, hardness))


def pcl(temperature: float, queue: int, clusters: int, warmup: int) -> Objective:
    memory = Clusters((clusters, 2 * clusters, 4 * clusters), temperature, warmup)
    return Objective(
        align=MatchTeacher(temperature) + ClusterMatch(memory),
        constrain=K.QueuePartition(temperature) + K.ClusterPartition(memory),
        transforms=[K.FromQueue(queue)],
    )


def lmcl(temperature: float, polarisation: float, near: float, far: float) -> Objective:
    constrain = K.LogPartition(temperature) + polarisation * K.Polarisation(near, far)
    return Objective(align=Cosine(temperature), constrain=constrain)


def metaug(sharpness: float, generated: float, step: float) -> Objective:
    scale = 16 / sharpness
    return Objective(
        align=scale * UnifiedMatch(sharpness) + scale * generated * UnifiedMatch(sharpness, generated=True),
        constrain=scale * UnifiedPartition(sharpness)
        + scale
        * generated
        * UnifiedPartition(sharpness, generated=True, step=step, emphasis=1 / max(generated, 1e-12)),
    )


def supcon(temperature: float) -> Objective:
    return Objective(align=SameClass(temperature), constrain=K.LogPartition(temperature))


def supervised() -> Objective:
    return Objective(align=ClassScore(), constrain=K.ClassPartition())


_TEACHER = "EMA teacher without gradient"
# fmt: off
_TABLE = [
    Method(name="align", title="Alignment alone", objective=align,
           paper="the paper's Figure 1: it collapses unless a constraint is added",
           options={"weight": 1.0},
           heads=Heads(projector=(512, 128))),
    Method(name="simclr", title="SimCLR", objective=simclr,
           paper="Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations",
           options={"temperature": 0.2}, heads=Heads(projector=(512, 128))),
    Method(name="moco", title="MoCo v2", objective=moco,
           paper="Chen et al. 2020, Improved Baselines with Momentum Contrastive Learning",
           options={"temperature": 0.2, "queue": 4096}, heads=Heads(projector=(512, 128)),
           ema_momentum=(0.99, 0.999), architecture=_TEACHER),
    Method(name="simsiam", title="SimSiam", objective=simsiam,
           paper="Chen and He 2021, Exploring Simple Siamese Representation Learning",
           heads=Heads(projector=(512, 512), last_norm=True, predictor=(128,), fixed_predictor_lr=True),
           scale=0.1, architecture="stop-gradient on the target, predictor, batch normalisation of z"),
    Method(name="byol", title="BYOL", objective=byol,
           paper="Grill et al. 2020, Bootstrap Your Own Latent",
           heads=Heads(projector=(1024, 256), predictor=(1024,)), ema_momentum=(0.99, 1.0), scale=0.2,
           architecture=f"{_TEACHER}; predictor"),
    Method(name="barlow_twins", title="Barlow Twins", objective=barlow_twins,
           paper="Zbontar et al. 2021, Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
           options={"redundancy": 0.0051, "factor": 1.0}, heads=Heads(projector=(512, 512)), scale=200.0),
    Method(name="swav", title="SwAV", objective=swav,
           paper="Caron et al. 2020, Unsupervised Learning of Visual Features by Contrasting Cluster Assignments",
           options={"temperature": 0.1, "sharpness": 0.05, "rounds": 3, "queue": 0, "queue_epoch": 15.0},
           heads=Heads(projector=(512, 128), prototypes=512, frozen_prototypes=1),
           architecture="codes without gradient; prototypes are unit vectors", scale=0.3),
    Method(name="wmse", title="W-MSE", objective=wmse,
           paper="Ermolov et al. 2021, Whitening for Self-Supervised Representation Learning",
           options={"size": 128, "rounds": 1}, heads=Heads(projector=(512, 64)), scale=2.0),
    Method(name="ressl", title="ReSSL", objective=ressl,
           paper="Zheng et al. 2021, ReSSL: Relational Self-Supervised Learning with Weak Augmentation",
           options={"temperature": 0.1, "sharp": 0.04, "queue": 4096}, augment="ressl",
           heads=Heads(projector=(512, 128)), ema_momentum=(0.99, 1.0),
           architecture=f"{_TEACHER}, with the weak view and a lower temperature"),
    Method(name="mec", title="MEC", objective=mec,
           paper="Liu et al. 2022, Self-Supervised Learning via Maximum Entropy Coding",
           options={"distortion": 64.0, "order": 4, "warmup": 10.0},
           heads=Heads(projector=(512, 512), last_norm=True, predictor=(128,)), ema_momentum=(0.99, 1.0), scale=0.1,
           architecture=f"{_TEACHER}; predictor, batch normalisation of z"),
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
    Method(name="relicv2", title="ReLICv2", objective=relicv2,
           paper="Tomasev et al. 2022, Pushing the Limits of Self-Supervised ResNets",
           options={"temperature": 0.2, "invariance": 1.0}, heads=Heads(projector=(512, 128)),
           ema_momentum=(0.99, 1.0), architecture=_TEACHER,
           unverified="number of negatives and temperature (no training code was published)"),
    Method(name="dcl", title="DCL", objective=dcl,
           paper="Chuang et al. 2020, Debiased Contrastive Learning",
           options={"temperature": 0.5, "same": 0.1}, many_views=False,
           heads=Heads(projector=(512, 128))),
    Method(name="hcl", title="HCL", objective=hcl,
           paper="Robinson et al. 2021, Contrastive Learning with Hard Negative Samples",
           options={"temperature": 0.5, "same": 0.1, "hardness": 1.0}, many_views=False,
           heads=Heads(projector=(512, 128)), scale=0.7),
    Method(name="pcl", title="PCL", objective=pcl,
           paper="Li et al. 2021, Prototypical Contrastive Learning of Unsupervised Representations",
           options={"temperature": 0.2, "queue": 4096, "clusters": 64, "warmup": 1},
           heads=Heads(projector=(512, 128)), ema_momentum=(0.99, 0.999),
           architecture=f"{_TEACHER}; k-means clusters of its outputs, computed again before every epoch"),
    Method(name="lmcl", title="LMCL", objective=lmcl,
           paper="Chen et al. 2021, Large-Margin Contrastive Learning with Distance Polarization Regularizer",
           options={"temperature": 0.2, "polarisation": 1.0, "near": 0.1, "far": 0.5},
           unverified="formula and thresholds (from memory of the paper; no code was published)",
           heads=Heads(projector=(512, 128))),
    Method(name="metaug", title="MetAug", objective=metaug,
           paper="Li et al. 2022, MetAug: Contrastive Learning via Meta Feature Augmentation",
           options={"sharpness": 16.0, "generated": 1e-5, "step": 1.0},
           heads=Heads(projector=(512, 128), generator=(128,)),
           architecture="feature generator trained by a look-ahead (meta) gradient", scale=1.5),
    Method(name="supcon", title="SupCon", objective=supcon,
           paper="Khosla et al. 2020, Supervised Contrastive Learning",
           options={"temperature": 0.1}, heads=Heads(projector=(512, 128)), scale=1.5),
    Method(name="supervised", title="Cross-entropy", objective=supervised,
           paper="a classifier with labels, for comparison; an added constraint acts on the backbone's features",
           heads=Heads(projector=())),
]
# fmt: on
METHODS: dict[str, Method] = {method.name: method for method in _TABLE}


def parse(spec: str, adc: AdcOptions | None = None) -> Method:
    """The method of ``method`` or ``method+constraint``, its objective with the added constraints.

    >>> [term.name for _, term in parse("byol+adc").build().parts]
    ['predict_teacher', 'dcm', 'lpm']
    >>> parse("simclr+none").name
    'simclr'
    """
    base, *added = (part.strip() for part in spec.lower().split("+"))
    if base not in METHODS:
        raise ValueError(f"unknown method {base!r}{nearest(base, METHODS)} (methods: {', '.join(METHODS)})")
    for name in added:
        if name not in CONSTRAINTS and name != "none":
            known = ", ".join(["none", *CONSTRAINTS])
            raise ValueError(f"unknown constraint {name!r}{nearest(name, CONSTRAINTS)} (constraints: {known})")
        if added.count(name) > 1:
            raise ValueError(f"{spec!r} adds {name!r} twice: set its weight instead (nu, upsilon)")
    added = [name for name in added if name != "none"]
    method = METHODS[base]
    if not added:
        return method

    def objective(**options: Any) -> Objective:
        result = method.objective(**options)
        for name in added:
            result = result.constrained_by(method.scale * CONSTRAINTS[name](adc or AdcOptions()))
        return result

    return replace(method, name="+".join([base, *added]), objective=objective)
