"""Methods that tell images apart: alignment, and a partition of similarities over other images."""

from glf.align.distance import Cosine
from glf.align.metaug import UnifiedMatch
from glf.align.predict import MatchTeacher, PredictNeighbour
from glf.align.relations import ClusterMatch, Invariance
from glf.constrain import contrast as K
from glf.constrain.metaug import UnifiedPartition
from glf.constrain.neighbour_positive import NearestNeighbours, NeighbourPartition
from glf.nn.heads import Heads
from glf.nn.memory import Clusters
from glf.objective import Method, Objective
from glf.relations import Attract, CosineSoftmax, OtherView, Relate, RowPartition, StudentT


def simclr(temperature: float) -> Objective:
    return Objective(align=Cosine(temperature), constrain=K.LogPartition(temperature))


def moco(temperature: float, queue: int) -> Objective:
    constrain = K.QueuePartition(temperature)
    return Objective(align=MatchTeacher(temperature), constrain=constrain, transforms=[K.FromQueue(queue)])


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


def tsimclr(temperature: float, df: float) -> Objective:
    kernel = StudentT(space="raw", scale=1 / temperature, dim=1.0, rho=df, t_scale="scale")
    relation = Relate(OtherView(), kernel, among="views")
    return Objective(align=Attract(relation), constrain=RowPartition(relation))


def xsample(temperature: float, prior_temperature: float, share: float) -> Objective:
    of_prior = CosineSoftmax("prior", temperature=prior_temperature)
    target = share * of_prior + (1 - share) * OtherView() if share < 1 else of_prior
    relation = Relate(target, CosineSoftmax(temperature=temperature), among="views")
    return Objective(align=Attract(relation), constrain=RowPartition(relation))


def nnclr(temperature: float, queue: int, within: int) -> Objective:
    return Objective(
        align=PredictNeighbour(temperature),
        constrain=NeighbourPartition(temperature, bool(within)),
        transforms=[NearestNeighbours(queue)],
    )


_TEACHER = "EMA teacher without gradient"
# fmt: off
TABLE = [
    Method(name="simclr", title="SimCLR", objective=simclr,
           paper="Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations",
           options={"temperature": 0.2}, heads=Heads(projector=(512, 128))),
    Method(name="moco", title="MoCo v2", objective=moco,
           paper="Chen et al. 2020, Improved Baselines with Momentum Contrastive Learning",
           options={"temperature": 0.2, "queue": 4096}, heads=Heads(projector=(512, 128)),
           ema_momentum=(0.99, 0.999), architecture=_TEACHER),
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
    Method(name="tsimclr", title="t-SimCLR", objective=tsimclr,
           paper="Hu et al. 2023, Your Contrastive Learning Is Secretly Doing Stochastic Neighbor Embedding",
           options={"temperature": 8.0, "df": 5.0}, heads=Heads(projector=(512, 128)), scale=1.8),
    Method(name="xsample", title="X-Sample", objective=xsample,
           paper="Sobal et al. 2024, X-Sample Contrastive Loss",
           options={"temperature": 0.1, "prior_temperature": 0.1, "share": 1.0}, heads=Heads(projector=(512, 128)),
           unverified="temperatures and the anchor's other view in the target (from the paper; no code was compared)",
           scale=1.4),
    Method(name="nnclr", title="NNCLR", objective=nnclr,
           paper="Dwibedi et al. 2021, With a Little Help from My Friends: Nearest-Neighbor Contrastive Learning of"
                 " Visual Representations",
           options={"temperature": 0.1, "queue": 4096, "within": 0},
           heads=Heads(projector=(512, 128), predictor=(512,)), architecture="predictor"),
]
# fmt: on
