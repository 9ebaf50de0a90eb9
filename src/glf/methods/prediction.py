"""Methods that predict the output of another view, of a teacher or of prototypes."""

from glf.align.predict import PredictTeacher, PredictTeacherCosine, PredictView
from glf.align.relations import Relation, SwappedPrediction
from glf.constrain import contrast as K
from glf.constrain.centring import CentredCodes
from glf.constrain.logdet import CodingLength
from glf.constrain.sinkhorn import Codes
from glf.nn.heads import Heads
from glf.objective import Method, Objective
from glf.relations import Attract, CosineSoftmax, Relate, RowPartition


def simsiam() -> Objective:
    return Objective(align=PredictView())


def byol() -> Objective:
    return Objective(align=2 * PredictTeacher())  # BYOL sums both directions; the term is their mean


def swav(temperature: float, sharpness: float, rounds: int, queue: int, queue_epoch: float) -> Objective:
    codes = Codes(sharpness=sharpness, rounds=rounds, queue=queue, queue_epoch=queue_epoch)
    return Objective(SwappedPrediction(temperature), K.PrototypePartition(temperature), transforms=[codes])


def ressl(temperature: float, sharp: float, queue: int) -> Objective:
    constrain = K.RelationPartition(temperature)
    return Objective(Relation(temperature, sharp), constrain, transforms=[K.FromQueue(queue)])


def mec(distortion: float, order: int, warmup: float) -> Objective:
    return Objective(align=PredictTeacherCosine(), constrain=CodingLength(distortion, order, warmup))


def distil(temperature: float, queue: int) -> Objective:
    of_prior, of_network = (CosineSoftmax(field, temperature=temperature) for field in ("prior", "r"))
    relation = Relate(of_prior, of_network, among="queue")
    return Objective(Attract(relation), RowPartition(relation), transforms=[K.FromQueue(queue, "prior", current=True)])


def dino(temperature: float, sharp: float, sharp_start: float, warmup: int, old: float) -> Objective:
    codes = CentredCodes(sharp, sharp_start, warmup, old)
    return Objective(SwappedPrediction(temperature), K.PrototypePartition(temperature), transforms=[codes])


_TEACHER = "EMA teacher without gradient"
# fmt: off
TABLE = [
    Method(name="simsiam", title="SimSiam", objective=simsiam,
           paper="Chen and He 2021, Exploring Simple Siamese Representation Learning",
           heads=Heads(projector=(512, 512), last_norm=True, predictor=(128,), fixed_predictor_lr=True),
           scale=0.1, architecture="stop-gradient on the target, predictor, batch normalisation of z"),
    Method(name="byol", title="BYOL", objective=byol,
           paper="Grill et al. 2020, Bootstrap Your Own Latent",
           heads=Heads(projector=(1024, 256), predictor=(1024,)), ema_momentum=(0.99, 1.0), scale=0.2,
           architecture=f"{_TEACHER}; predictor"),
    Method(name="swav", title="SwAV", objective=swav,
           paper="Caron et al. 2020, Unsupervised Learning of Visual Features by Contrasting Cluster Assignments",
           options={"temperature": 0.1, "sharpness": 0.05, "rounds": 3, "queue": 0, "queue_epoch": 15.0},
           heads=Heads(projector=(512, 128), prototypes=512, frozen_prototypes=1),
           architecture="codes without gradient; prototypes are unit vectors", scale=0.3),
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
    Method(name="distil", title="Distillation", objective=distil,
           paper="Fang et al. 2021, SEED: Self-Supervised Distillation for Visual Representation",
           options={"temperature": 0.07, "queue": 4096}, heads=Heads(projector=()), scale=5.0,
           architecture="a linear head on the backbone's features, as wide as the prior's"),
    Method(name="dino", title="DINO", objective=dino,
           paper="Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers",
           options={"temperature": 0.1, "sharp": 0.04, "sharp_start": 0.04, "warmup": 0, "old": 0.9},
           heads=Heads(projector=(512, 512, 128), prototypes=512, frozen_prototypes=1), ema_momentum=(0.99, 1.0),
           architecture=f"{_TEACHER}, with prototypes of its own; prototypes are unit vectors"),
]
# fmt: on
