"""Methods that need labels."""

from glf.align.supervised import ClassScore, SameClass
from glf.constrain import contrast as K
from glf.nn.heads import Heads
from glf.objective import Method, Objective


def supcon(temperature: float) -> Objective:
    return Objective(align=SameClass(temperature), constrain=K.LogPartition(temperature))


def supervised() -> Objective:
    return Objective(align=ClassScore(), constrain=K.ClassPartition())


# fmt: off
TABLE = [
    Method(name="supcon", title="SupCon", objective=supcon,
           paper="Khosla et al. 2020, Supervised Contrastive Learning",
           options={"temperature": 0.1}, heads=Heads(projector=(512, 128)), scale=1.5),
    Method(name="supervised", title="Cross-entropy", objective=supervised,
           paper="a classifier with labels, for comparison; an added constraint acts on the backbone's features",
           heads=Heads(projector=())),
]
# fmt: on
