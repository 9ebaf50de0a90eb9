"""Methods that classify: by labels, or with every training image as a class of its own (DIET)."""

from glf.align.supervised import ClassScore, InstanceScore, SameClass
from glf.constrain import contrast as K
from glf.constrain.moments import Covariance, Variance
from glf.nn.heads import Heads
from glf.objective import Method, Objective


def supcon(temperature: float) -> Objective:
    return Objective(align=SameClass(temperature), constrain=K.LogPartition(temperature))


def supervised() -> Objective:
    return Objective(align=ClassScore(), constrain=K.ClassPartition())


def vcreg(variance: float, covariance: float) -> Objective:
    constrain = K.ClassPartition() + variance * Variance() + covariance * Covariance()
    return Objective(align=ClassScore(), constrain=constrain)


def diet(smoothing: float) -> Objective:
    return Objective(align=InstanceScore(smoothing), constrain=K.InstancePartition(smoothing))


# fmt: off
TABLE = [
    Method(name="supcon", title="SupCon", objective=supcon,
           paper="Khosla et al. 2020, Supervised Contrastive Learning",
           options={"temperature": 0.1}, heads=Heads(projector=(512, 128)), scale=1.5),
    Method(name="supervised", title="Cross-entropy", objective=supervised,
           paper="a classifier with labels, for comparison; an added constraint acts on the backbone's features",
           heads=Heads(projector=())),
    Method(name="vcreg", title="VCReg", objective=vcreg,
           paper="Zhu et al. 2023, Variance-Covariance Regularization Improves Representation Learning",
           options={"variance": 0.64, "covariance": 0.08}, heads=Heads(projector=()),
           unverified="weights, and the covariance's divisor (the width, as in VICReg)"),
    Method(name="diet", title="DIET", objective=diet,
           paper="Ibrahim et al. 2024, Occam's Razor for Self Supervised Learning: What is Sufficient to Learn Good"
                 " Representations?",
           options={"smoothing": 0.8}, heads=Heads(projector=()), scale=0.12,
           unverified="the label smoothing of 0.8 (from memory of the paper)"),
]
# fmt: on
