"""The table of augmentation policies: published numbers, and valid ranges."""

from dataclasses import FrozenInstanceError, asdict

import pytest

from glf.data.augment.policies import POLICIES, ViewPolicy, policy

COMMON = {"ratio": (3 / 4, 4 / 3), "flip": 0.5, "jitter": 0.8, "side": 1.0}
GENTLE = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
STRONG = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        # Ermolov et al. 2021, on image transformations
        ("wmse", GENTLE | {"crop_area": (0.2, 1.0), "grey": 0.1, "blur": 0.0, "solarise": 0.0}, {}),
        # solo-learn, scripts/pretrain/cifar/augmentations/symmetric.yaml
        ("symmetric", STRONG | {"crop_area": (0.08, 1.0), "grey": 0.2, "blur": 0.5, "solarise": 0.0}, {}),
        # solo-learn, scripts/pretrain/cifar/augmentations/asymmetric.yaml
        (
            "asymmetric",
            GENTLE | {"saturation": 0.2, "crop_area": (0.08, 1.0), "grey": 0.2, "blur": 0.0, "solarise": 0.0},
            {"solarise": 0.2},
        ),
        # serdarozsoy/corinfomax-ssl, extras/ldmi_plot/transform_utils.py, for CIFAR too
        (
            "asymmetric224",
            GENTLE | {"saturation": 0.2, "crop_area": (0.08, 1.0), "grey": 0.2, "blur": 1.0, "solarise": 0.0},
            {"blur": 0.1, "solarise": 0.2},
        ),
        # xinliu20/MEC, main_pretrain.py
        (
            "mec",
            GENTLE | {"saturation": 0.2, "crop_area": (0.2, 1.0), "grey": 0.2, "blur": 1.0, "solarise": 0.0},
            {"blur": 0.1, "solarise": 0.2},
        ),
    ],
)
def test_policies_have_their_publications_numbers(name, first, second):
    assert [asdict(view) for view in policy(name)] == [COMMON | first, COMMON | first | second]


@pytest.mark.parametrize(("name", "saturation", "least"), [("ressl", 0.4, 0.2), ("ressl_cifar", 0.2, 0.08)])
def test_ressl_has_a_strong_and_a_weak_view(name, saturation, least):
    """ressl_cifar: solo-learn, scripts/pretrain/cifar/augmentations/ressl.yaml."""
    strong, weak = (asdict(view) for view in policy(name))
    colours = GENTLE | {"saturation": saturation, "grey": 0.2, "blur": 0.5, "solarise": 0.0}
    assert strong == COMMON | colours | {"crop_area": (least, 1.0)}
    assert (weak["crop_area"], weak["flip"]) == ((least, 1.0), 0.5)
    assert all(weak[name] == 0 for name in ("jitter", "grey", "blur", "solarise"))


def test_multicrop_equals_swavs():
    """Caron et al. 2020: two large crops of 14 to 100 % of the area, six small ones of 5 to 14 %, strong colours."""
    views = policy("multicrop")
    assert [(view.crop_area, round(32 * view.side)) for view in views] == [((0.14, 1.0), 32)] * 2 + [
        ((0.05, 0.14), 18)
    ] * 6
    assert all(STRONG.items() <= asdict(view).items() for view in views)


@pytest.mark.parametrize("name", POLICIES)
def test_every_view_has_valid_ranges(name):
    views = policy(name)
    assert len(views) == {"multicrop": 8, "multicrop224": 8, "wmse4": 4, "single": 1, "patches": 20, "patches8": 8}.get(
        name, 2
    )
    for view in views:
        assert 0 < view.crop_area[0] <= view.crop_area[1] <= 1
        assert 0 < view.ratio[0] <= view.ratio[1]
        assert 0 < view.side <= 1
        assert all(0 <= p <= 1 for p in (view.flip, view.jitter, view.grey, view.blur, view.solarise))
        assert all(0 <= strength <= 1 for strength in (view.brightness, view.contrast, view.saturation))
        assert 0 <= view.hue <= 0.5


def test_an_unknown_policy_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"'asymetric' - did you mean 'asymmetric'\?.*wmse, gentle, mild, symmetric"):
        policy("asymetric")


def test_a_view_policy_is_frozen_and_keyword_only():
    with pytest.raises(FrozenInstanceError):
        ViewPolicy().flip = 1.0
    with pytest.raises(TypeError):
        ViewPolicy((0.2, 1.0))
