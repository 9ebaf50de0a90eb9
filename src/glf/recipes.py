"""Recipes: named hyperparameter presets, ``glf pretrain --method simclr --recipe cifar``.

A recipe is a set of values of PretrainConfig; options given explicitly override it. ``tiny`` trains on two cores in
minutes. The other recipes have the hyperparameters of a published repository, as far as glf can express them, and the
accuracy reported there. They need a GPU and have not been run with glf.
"""

from dataclasses import dataclass, replace
from typing import Any

from glf.config.base import nearest
from glf.config.training import PretrainConfig, fill_unset

_CIFAR = {
    "backbone": "resnet18", "image_size": 32, "batch_size": 256, "epochs": 1000, "warmup_epochs": 10.0,
    "optimizer": "lars", "colours": "exact",
}  # fmt: skip
_WMSE = {
    "backbone": "resnet18", "image_size": 32, "batch_size": 512, "epochs": 1000, "warmup_epochs": 5.0,
    "optimizer": "adamw", "lr": 1.5e-3, "weight_decay": 1e-6, "augment": "wmse", "colours": "exact",
}  # fmt: skip
_LARS = {"lars_eta": 0.001, "lars_clip": False}  # of the papers; glf's defaults are solo-learn's for CIFAR
_IMAGENET = {"backbone": "resnet50", "image_size": 224, "colours": "exact"}
# Larger crops and a higher learning rate than usual: ten epochs of 5,000 images are too few for smaller crops.
_TINY = {"backbone": "small_resnet", "batch_size": 128, "epochs": 10, "augment": "gentle", "lr": 6e-3}
_TINY_OWN: dict[str, dict[str, Any]] = {
    "swav": {"prototypes": 64},  # Sinkhorn assigns equal shares of a batch of 128 images: too few for more prototypes
    "dino": {"prototypes": 64},  # images of a small batch share few of them
    # The series has a minimum only if the width of z is at most the distortion.
    "mec": {"options": {"distortion": 512.0, "warmup": 0.0}},
    "ressl": {"augment": None},  # the method's own: its last view must be weak
    "relicv2": {"augment": "wmse"},  # as in its stored benchmark
    "emp": {"augment": "patches8"},  # its constraint compares patches of a fixed size
}
_SOLO = "solo-learn, online linear probe"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The hyperparameters of one method on one data set."""

    settings: dict[str, Any]
    data: str
    source: str
    published: str  # accuracy in per cent, with the data set or metric
    cost: str

    def described(self, method: str, name: str) -> str:
        """The command, and the recipe's source, published accuracy and cost."""
        command = f"glf pretrain --method {method} --recipe {name} --data {self.data}"
        return f"{command}\n  from {self.source}; published: {self.published}; cost: {self.cost}"


def _cifar(published: str, *, source: str = _SOLO, base: dict[str, Any] = _CIFAR, **settings: Any) -> Recipe:
    epochs = settings.get("epochs", base["epochs"])
    cost = f"ResNet-18 over {epochs * 50_000 / 1e6:g} million images"
    return Recipe(settings={**base, **settings}, data="cifar10", source=source, published=published, cost=cost)


def _imagenet(published: str, source: str, **settings: Any) -> Recipe:
    cost = f"ResNet-50 over {settings['epochs'] * 1.281:.0f} million images"
    return Recipe(settings={**_IMAGENET, **settings}, data="imagenet", source=source, published=published, cost=cost)


def _wmse(published: str, **settings: Any) -> Recipe:
    source = "W-MSE's repository (the protocol of the ADC paper's Table 1; AdamW instead of Adam)"
    return _cifar(published, source=source, base=_WMSE, **settings)


RECIPES: dict[str, dict[str, Recipe]] = {
    "simclr": {
        "cifar": _cifar("90.74 on CIFAR-10, 65.78 on CIFAR-100", lr=0.4, weight_decay=1e-4, augment="symmetric",
                        projector=(2048, 256), projector_norm=False, options={"temperature": 0.2}),
        "wmse": _wmse("91.80 linear, 88.42 k-NN (k = 5) on CIFAR-10", projector=(1024, 64),
                      options={"temperature": 0.5}),
    },
    "moco": {
        "cifar": _cifar("92.94 on CIFAR-10, 69.89 on CIFAR-100", optimizer="sgd", lr=0.3, weight_decay=1e-4,
                        augment="symmetric_weak", projector=(2048, 256), projector_norm=False,
                        ema_momentum=(0.99, 0.999), options={"temperature": 0.2, "queue": 32768}),
        "imagenet": _imagenet("67.5 top-1", "facebookresearch/moco", epochs=200, batch_size=256,
                              optimizer="sgd", lr=0.03, weight_decay=1e-4, warmup_epochs=0.0, augment="weak",
                              projector=(2048, 128), projector_norm=False, ema_momentum=(0.999, 0.999),
                              options={"temperature": 0.2, "queue": 65536}),
    },
    "simsiam": {
        "cifar": _cifar("90.51 on CIFAR-10, 66.04 on CIFAR-100", optimizer="sgd", lr=0.5, weight_decay=1e-5,
                        augment="symmetric_weak", projector=(2048, 2048, 2048), predictor=(512,)),
        "imagenet": _imagenet("68.1 top-1", "facebookresearch/simsiam", epochs=100,
                              batch_size=512, optimizer="sgd", lr=0.05, weight_decay=1e-4, warmup_epochs=0.0,
                              augment="weak", projector=(2048, 2048, 2048), predictor=(512,)),
    },
    "byol": {
        "cifar": _cifar("92.58 on CIFAR-10, 70.46 on CIFAR-100", lr=1.0, weight_decay=1e-5, augment="asymmetric",
                        projector=(4096, 256), predictor=(4096,), ema_momentum=(0.99, 1.0)),
        "wmse": _wmse("91.73 linear, 89.45 k-NN (k = 5) on CIFAR-10", projector=(1024, 64), predictor=(1024,)),
        "imagenet": _imagenet("74.3 top-1 (from memory of the paper)", "deepmind-research/byol", epochs=1000,
                              batch_size=4096, optimizer="lars", lr=0.2, weight_decay=1.5e-6, warmup_epochs=10.0,
                              augment="asymmetric224", projector=(4096, 256), predictor=(4096,),
                              ema_momentum=(0.996, 1.0), **_LARS),
    },
    "barlow_twins": {
        "cifar": _cifar("92.10 on CIFAR-10, 70.90 on CIFAR-100", lr=0.3, weight_decay=1e-4, augment="asymmetric",
                        projector=(2048, 2048, 2048), options={"redundancy": 0.0051, "factor": 0.1}),
        "imagenet": _imagenet("73.3 top-1", "facebookresearch/barlowtwins", epochs=1000,
                              batch_size=2048, optimizer="lars", lr=0.2, weight_decay=1e-6, warmup_epochs=10.0,
                              augment="asymmetric224", projector=(8192, 8192, 8192), bias_lr=0.024, **_LARS),
    },
    "swav": {
        "cifar": _cifar("89.17 on CIFAR-10, 64.88 on CIFAR-100", lr=0.6, weight_decay=1e-6, augment="symmetric",
                        projector=(2048, 128), prototypes=3000, frozen_prototypes=2.0,
                        options={"queue": 3840, "queue_epoch": 50}),
        "imagenet": _imagenet("74.3 top-1", "facebookresearch/swav", epochs=400,
                              batch_size=256, optimizer="lars", lr=0.6, weight_decay=1e-6, warmup_epochs=0.0,
                              augment="multicrop224", projector=(2048, 128), prototypes=3000, frozen_prototypes=1.0,
                              options={"queue": 3840, "queue_epoch": 15}, **_LARS),
    },
    "wmse": {
        "cifar": _cifar("88.67 on CIFAR-10, 61.33 on CIFAR-100", optimizer="adamw", lr=2e-3, weight_decay=1e-6,
                        augment="strong", projector=(1024, 64), options={"size": 128, "rounds": 1}),
        "wmse": _wmse("91.55 linear, 89.69 k-NN (k = 5) on CIFAR-10 with two views", projector=(1024, 64)),
        "wmse4": _wmse("91.99 linear, 89.87 k-NN (k = 5) on CIFAR-10 with four views", projector=(1024, 64),
                       augment="wmse4", batch_size=256, lr=3e-3),
    },
    "ressl": {
        "cifar": _cifar("90.63 on CIFAR-10, 65.92 on CIFAR-100", optimizer="sgd", lr=0.05, weight_decay=1e-4,
                        augment="ressl_cifar", projector=(4096, 256), projector_norm=False, ema_momentum=(0.99, 1.0),
                        options={"queue": 65536, "temperature": 0.1, "sharp": 0.04}),
    },
    "mec": {
        "imagenet": _imagenet("none verified", "xinliu20/MEC", epochs=100, batch_size=1024, optimizer="sgd",
                              lr=0.5, weight_decay=1e-5, warmup_epochs=10.0, augment="mec",
                              projector=(2048, 2048, 2048), predictor=(512,), ema_momentum=(0.996, 1.0)),
    },
    "vicreg": {
        # solo-learn sums the variance over views; glf averages it.
        "cifar": _cifar("92.07 on CIFAR-10, 68.54 on CIFAR-100", lr=0.3, weight_decay=1e-4, augment="solarised",
                        projector=(2048, 2048, 2048), options={"variance": 50.0}),
        "imagenet": _imagenet("73.2 top-1", "facebookresearch/vicreg", epochs=1000, batch_size=2048,
                              optimizer="lars", lr=0.2, weight_decay=1e-6, warmup_epochs=10.0,
                              augment="asymmetric224", projector=(8192, 8192, 8192), **_LARS),
    },
    "vicregl": {
        "imagenet": _imagenet("70.4 top-1 (71.2 with a share of 0.9)",
                              "facebookresearch/VICRegL", epochs=300, batch_size=2048, optimizer="lars", lr=0.2,
                              weight_decay=1e-6, warmup_epochs=10.0, augment="asymmetric224",
                              projector=(8192, 8192, 8192), local=(512, 512, 512), **_LARS),
    },
    "corinfomax": {
        "cifar": _cifar("93.18 on CIFAR-10", source="serdarozsoy/corinfomax-ssl", optimizer="sgd", lr=0.25,
                        weight_decay=1e-4, batch_size=512, augment="asymmetric224", projector=(2048, 2048, 64),
                        options={"invariance": 250}),
    },
    "supcon": {
        "cifar": _cifar("93.82 on CIFAR-10, 70.38 on CIFAR-100 (as L_in)", optimizer="sgd", lr=0.4, weight_decay=1e-5,
                        augment="symmetric", projector=(2048, 256), projector_norm=False, options={"temperature": 0.2}),
    },
}  # fmt: skip


def recipes(method: str) -> dict[str, Recipe]:
    """All recipes of a method by name; an added constraint does not matter."""
    base = _base(method)
    return {"tiny": tiny(base), **RECIPES.get(base, {})}


def _base(method: str) -> str:
    return method.partition("+")[0].strip().lower()


def recipe(method: str, name: str) -> Recipe:
    """Look up a recipe of a method; the ValueError for an unknown name lists the known ones."""
    known = recipes(method)
    if name not in known:
        raise ValueError(f"{_base(method)} has no recipe {name!r}{nearest(name, known)} (it has: {', '.join(known)})")
    return known[name]


def tiny(method: str) -> Recipe:
    """The recipe that trains on two cores in minutes: the small ResNet with the method's own heads."""
    return Recipe(
        settings={**_TINY, **_TINY_OWN.get(method, {})},
        data="fashion-mini",
        source="glf",
        published="none; it shows that the method trains",
        cost="about three minutes for 5,000 images of 32 px on two cores",
    )


def apply_recipe(config: PretrainConfig) -> PretrainConfig:
    """Return the config with its recipe's values in the place of unset fields; method options are merged."""
    if config.recipe is None:
        return config
    settings = dict(recipe(config.method, config.recipe).settings)
    options = {**settings.pop("options", {}), **config.options}
    return replace(fill_unset(config, **settings), options=options)
