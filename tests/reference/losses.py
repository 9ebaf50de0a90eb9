"""The loss of every method as its authors print it, by the method's name. A new method needs an entry in LOSSES."""

from collections.abc import Callable

import torch
from torch import Tensor

from glf.constrain.sigreg import SIGReg
from glf.nn.memory import Queue
from glf.similarity import cell_centres
from reference import methods as m
from reference import relations
from reference.terms import cosine

Fields = dict[str, Tensor]  # of Embeddings


def filled_queue(f: Fields) -> Tensor:
    """The entries of a queue of 16 before the first step."""
    return Queue(16)(f["teacher"])


def _align(f: Fields) -> Tensor:
    return cosine(*f["z"])


def _metaug(f: Fields) -> Tensor:
    """Both parts; the generated features are held fixed (they are trained by a look-ahead loss)."""
    z = f["z"]
    plain = m.unified(z, 16.0)
    more = m.unified(torch.cat((z, f["generated"].detach())), 16.0)
    return plain + 0.5 * more


def _vicregl(f: Fields) -> Tensor:
    where = torch.stack([cell_centres(box, f["maps"].shape[2]) for box in f["boxes"]])
    return m.vicregl(f["z"], f["maps"], where, 0.75, 3, 2)


def _distil(f: Fields) -> Tensor:
    """The queue has this batch already, the newest first."""
    queue = torch.cat((f["prior"], Queue(16)(f["prior"].unsqueeze(0))[0]))[:16]
    return relations.distil(f["r"], f["prior"], queue, 0.07)


def _dino(f: Fields) -> Tensor:
    centre = torch.zeros(len(f["prototypes"]), dtype=torch.float64)
    fixed = f["teacher_prototypes"].detach()
    return m.dino(f["z"], f["teacher"].detach(), f["prototypes"], fixed, centre, 0.1, 0.04)


def _lejepa(f: Fields) -> Tensor:
    return m.lejepa(f["z"], SIGReg(9).directions(f["z"]), 0.05)


LOSSES: dict[str, tuple[Callable[[Fields], Tensor], dict[str, float]]] = {
    "align": (_align, {}),
    "simclr": (lambda f: m.nt_xent(*f["z"], 0.2), {}),
    "moco": (lambda f: m.moco(f["z"], f["teacher"].detach(), filled_queue(f), 0.2), {"queue": 16}),
    "simsiam": (lambda f: m.simsiam(f["p"], f["z"].detach()), {}),
    "byol": (lambda f: m.byol(f["p"], f["teacher"].detach()), {}),
    "barlow_twins": (lambda f: m.barlow_twins(*f["z"], 0.0051), {}),
    "swav": (lambda f: m.swav(f["z"], f["prototypes"], 0.1, 0.05, 3), {}),
    "wmse": (lambda f: m.wmse(f["z"]), {}),
    "ressl": (lambda f: m.ressl(f["z"], f["teacher"].detach(), filled_queue(f), 0.1, 0.04), {"queue": 16}),
    "mec": (lambda f: m.mec(f["p"], f["teacher"].detach(), 2.0, 4), {"distortion": 2.0, "warmup": 0}),
    "vicreg": (lambda f: m.vicreg(*f["z"], 25.0, 25.0, 1.0), {}),
    "vicregl": (_vicregl, {"first": 3, "second": 2}),
    "corinfomax": (lambda f: m.corinfomax(f["z"], 250.0, 0.01), {}),
    "relicv2": (lambda f: m.relicv2(f["z"], f["teacher"].detach(), 0.2, 1.0), {}),
    "dcl": (lambda f: m.debiased(*f["z"], 0.5, 0.1), {}),
    "hcl": (lambda f: m.debiased(*f["z"], 0.5, 0.1, 1.0), {}),
    "pcl": (lambda f: m.moco(f["z"], f["teacher"].detach(), filled_queue(f), 0.2), {"queue": 16, "clusters": 2}),
    "lmcl": (
        lambda f: m.nt_xent(*f["z"], 0.2) + 3 * m.polarisation([*f["z"][0], *f["z"][1]], 0.1, 0.5),
        {"polarisation": 3.0},
    ),
    "metaug": (_metaug, {"generated": 0.5}),
    "tsimclr": (lambda f: relations.t_simclr(f["z"], 8.0, 5.0), {}),
    "xsample": (lambda f: relations.x_sample(f["z"], f["prior"], 0.1, 0.1), {}),
    "distil": (_distil, {"queue": 16}),
    "supcon": (lambda f: m.supcon(f["z"], f["target"], 0.1), {}),
    "supervised": (lambda f: m.supervised(f["scores"], f["target"]), {}),
    "dino": (_dino, {}),
    "nnclr": (lambda f: m.nnclr(f["z"].detach(), f["p"], Queue(16)(f["z"][:1])[0], 0.1), {"queue": 16}),
    "lejepa": (_lejepa, {"slices": 9}),
    "emp": (lambda f: m.emp(f["z"], 200.0, 0.2), {}),
    "tico": (lambda f: m.tico(f["z"], f["teacher"].detach(), None, 8.0, 0.9), {}),
    "vcreg": (lambda f: m.vcreg(f["z"], f["scores"], f["target"], 0.64, 0.08), {}),
    "diet": (lambda f: m.diet(f["instance_scores"], f["instance"], 0.8), {}),
}


# Options with which a batch of 12 images is enough, where the defaults need more.
SMALL: dict[str, dict[str, float]] = {
    "moco": {"queue": 9},
    "ressl": {"queue": 9},
    "pcl": {"queue": 9, "clusters": 2},
    "distil": {"queue": 20},
    "wmse": {"size": 6},
    "swav": {"queue": 9, "queue_epoch": 0},
    "nnclr": {"queue": 9},
}
