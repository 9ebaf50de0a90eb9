"""Augmentation recipes as one table of numbers: one View per view of an image."""

from dataclasses import dataclass, replace

from glf.config.base import nearest


@dataclass(frozen=True, kw_only=True)
class ViewPolicy:
    """How one view is drawn. Probabilities for what happens or not, ranges for what varies."""

    crop: tuple[float, float] = (0.2, 1.0)  # area of the crop, as a fraction of the image's
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height of the crop
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grey: float = 0.2
    blur: float = 0.0
    solarise: float = 0.0
    side: float = 1.0  # of the view, relative to the run's image size


_WMSE = ViewPolicy(grey=0.1)
_GENTLE = replace(_WMSE, crop=(0.4, 1.0))
_STRONG = ViewPolicy(crop=(0.08, 1.0), brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5)
_LOCAL = replace(_STRONG, crop=(0.05, 0.14), side=18 / 32)
_BYOL = ViewPolicy(crop=(0.08, 1.0), saturation=0.2)

# wmse: the protocol that the paper's Table 1 descends from (Ermolov et al. 2021), one for all methods.
# gentle: the same with larger crops, for small centred objects that a fifth of the image does not tell apart.
# symmetric, symmetric_weak and asymmetric: solo-learn's recipes for CIFAR, by the names they have there; strong and
# solarised are those of its W-MSE and of its VICReg.
# multicrop: two whole views and six small ones, SwAV's recipe in the sizes that it has on CIFAR, 2 x 32 + 6 x 18.
# multicrop224 and asymmetric224: SwAV's and BYOL's on ImageNet (2 x 224 + 6 x 96; with blur).
# wmse4: the same with four views of each image.
# ressl: a strong view, and a weak one that is only cropped and flipped, which must be the last.
# weak: the gentler colours of MoCo v2 and SimSiam, with their blur.
POLICIES: dict[str, tuple[ViewPolicy, ...]] = {
    "wmse": (_WMSE, _WMSE),
    "gentle": (_GENTLE, _GENTLE),
    "symmetric": (_STRONG, _STRONG),
    "multicrop": (*[replace(_STRONG, crop=(0.14, 1.0))] * 2, *[_LOCAL] * 6),
    "multicrop224": (*[replace(_STRONG, crop=(0.14, 1.0))] * 2, *[replace(_LOCAL, side=96 / 224)] * 6),
    "strong": (replace(_STRONG, crop=(0.2, 1.0), blur=0),) * 2,
    "weak": (ViewPolicy(blur=0.5),) * 2,
    "symmetric_weak": (ViewPolicy(crop=(0.08, 1.0), blur=0.5),) * 2,
    "solarised": (ViewPolicy(saturation=0.2, solarise=0.1),) * 2,
    "asymmetric": (_BYOL, replace(_BYOL, solarise=0.2)),
    "asymmetric224": (replace(_BYOL, blur=1.0), replace(_BYOL, blur=0.1, solarise=0.2)),
    "wmse4": (_WMSE,) * 4,
    "ressl": (replace(_WMSE, grey=0.2, blur=0.5), ViewPolicy(jitter=0, grey=0)),
}


def policy(name: str) -> tuple[ViewPolicy, ...]:
    """The recipe of that name, or a ValueError with the nearest one."""
    if name not in POLICIES:
        known = ", ".join(POLICIES)
        raise ValueError(f"unknown recipe of views {name!r}{nearest(name, POLICIES)} (recipes: {known})")
    return POLICIES[name]
