"""Augmentation policies (``--augment``) as one table of numbers: one ``ViewPolicy`` per view of an image."""

from dataclasses import dataclass, replace

from glf.config.base import nearest


@dataclass(frozen=True, kw_only=True)
class ViewPolicy:
    """Parameters of one view."""

    # Crop and flip
    crop_area: tuple[float, float] = (0.2, 1.0)  # range of the crop's area, as a fraction of the image's
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # range of the crop's width / height
    flip: float = 0.5  # probability
    side: float = 1.0  # side of the view, relative to the run's image size
    # Colour jitter: its probability, and the strengths as in torchvision's ColorJitter
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    # Probabilities
    grey: float = 0.2
    blur: float = 0.0
    solarise: float = 0.0


BLUR_SIGMA = (0.1, 2.0)  # range of the Gaussian blur's standard deviation, in pixels

_WMSE = ViewPolicy(grey=0.1)
_GENTLE = replace(_WMSE, crop_area=(0.4, 1.0))
_MILD = ViewPolicy(crop_area=(0.4, 1.0), brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05, grey=0.05)
_STRONG = ViewPolicy(crop_area=(0.08, 1.0), brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5)
_GLOBAL = replace(_STRONG, crop_area=(0.14, 1.0))
_LOCAL = replace(_STRONG, crop_area=(0.05, 0.14), side=18 / 32)
_BYOL = ViewPolicy(crop_area=(0.08, 1.0), saturation=0.2)
_BYOL224 = (replace(_BYOL, blur=1.0), replace(_BYOL, blur=0.1, solarise=0.2))
_PATCH = ViewPolicy(crop_area=(0.25, 0.25), ratio=(1, 1), hue=0.2, blur=0.1, solarise=0.1)
_CROP_AND_FLIP = ViewPolicy(jitter=0, grey=0)

POLICIES: dict[str, tuple[ViewPolicy, ...]] = {
    # Ermolov et al. 2021 (W-MSE), for all methods: the protocol behind the paper's Table 1
    "wmse": (_WMSE, _WMSE),
    # wmse with larger crops, for small centred objects that a fifth of the image does not show
    "gentle": (_GENTLE, _GENTLE),
    # For adapting a pretrained encoder: large crops, and colours change little, because they may tell classes apart
    "mild": (_MILD, _MILD),
    # solo-learn's symmetric.yaml for CIFAR
    "symmetric": (_STRONG, _STRONG),
    # SwAV's multi-crop (2 global and 6 local views) with CIFAR's sizes, 2 x 32 + 6 x 18
    "multicrop": (*[_GLOBAL] * 2, *[_LOCAL] * 6),
    # SwAV on ImageNet, 2 x 224 + 6 x 96
    "multicrop224": (*[_GLOBAL] * 2, *[replace(_LOCAL, side=96 / 224)] * 6),
    # solo-learn's W-MSE for CIFAR
    "strong": (replace(_STRONG, crop_area=(0.2, 1.0), blur=0),) * 2,
    # MoCo v2 and SimSiam on ImageNet: weaker colours, with blur
    "weak": (ViewPolicy(blur=0.5),) * 2,
    # solo-learn's symmetric_weak.yaml for CIFAR
    "symmetric_weak": (ViewPolicy(crop_area=(0.08, 1.0), blur=0.5),) * 2,
    # solo-learn's VICReg for CIFAR
    "solarised": (ViewPolicy(saturation=0.2, solarise=0.1),) * 2,
    # solo-learn's asymmetric.yaml for CIFAR
    "asymmetric": (_BYOL, replace(_BYOL, solarise=0.2)),
    # BYOL, Barlow Twins and VICReg on ImageNet: with blur; CorInfoMax on CIFAR too
    "asymmetric224": _BYOL224,
    # MEC on ImageNet: the same with larger crops
    "mec": tuple(replace(view, crop_area=(0.2, 1.0)) for view in _BYOL224),
    # wmse with four views
    "wmse4": (_WMSE,) * 4,
    # One view, for methods that compare no views (DIET): half the cost of two
    "single": (_WMSE,),
    # EMP-SSL on CIFAR: square crops of a quarter of the image; of the authors' 20 to 200 patches the fewest
    "patches": (_PATCH,) * 20,
    # patches with eight views, for a CPU
    "patches8": (_PATCH,) * 8,
    # ReSSL: a strong view, and a weak one (crop and flip only), which must be the last
    "ressl": (ViewPolicy(blur=0.5), _CROP_AND_FLIP),
    # solo-learn's ReSSL for CIFAR
    "ressl_cifar": (replace(_BYOL, blur=0.5), replace(_CROP_AND_FLIP, crop_area=(0.08, 1.0))),
}


def policy(name: str) -> tuple[ViewPolicy, ...]:
    """Look up a policy by name; the ValueError for an unknown name suggests the nearest one."""
    if name not in POLICIES:
        known = ", ".join(POLICIES)
        raise ValueError(f"unknown augmentation policy {name!r}{nearest(name, POLICIES)} (policies: {known})")
    return POLICIES[name]
