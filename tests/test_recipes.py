"""Recipes are valid configs, each with its command, cost and published accuracy."""

import pytest
import torch

from glf.cli import parse_config
from glf.config.base import from_dict, to_dict
from glf.config.training import PretrainConfig
from glf.data.augment import policies
from glf.methods import METHODS, parse
from glf.recipes import RECIPES, apply_recipe, recipe
from glf.train.resolve import resolve

NAMED = [(method, name) for method in METHODS for name in ["tiny", *RECIPES.get(method, {})]]


@pytest.mark.parametrize(("method", "name"), NAMED)
def test_every_recipe_is_a_valid_config(method: str, name: str) -> None:
    config = apply_recipe(PretrainConfig(method=method, recipe=name))
    assert config.recipe == name
    assert from_dict(PretrainConfig, to_dict(config)) == config
    entry = parse(method)
    entry.build(**config.options)
    assert len(policies.policy(config.augment or entry.augment)) == 2 or entry.many_views
    text = recipe(method, name).described(method, name)
    assert f"glf pretrain --method {method} --recipe {name} --data " in text
    assert "published: " in text
    assert "cost: " in text


def test_every_method_has_the_recipe_tiny_and_recipes_belong_to_known_methods() -> None:
    assert set(RECIPES) <= set(METHODS)
    assert {method for method, name in NAMED if name == "tiny"} == set(METHODS)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"simclr has no recipe 'cifr' - did you mean 'cifar'.*tiny, cifar, wmse"):
        recipe("simclr+adc", "cifr")


def test_explicit_options_win_over_a_recipe() -> None:
    arguments = "--method moco+adc --recipe cifar --epochs 20 --lr=0.1 --optimizer adamw --options queue 64".split()
    config = apply_recipe(parse_config("pretrain", arguments))
    assert (config.method, config.recipe, config.epochs, config.lr) == ("moco+adc", "cifar", 20, 0.1)
    assert (config.batch_size, config.projector) == (256, (2048, 256))
    assert config.optimizer == "adamw"  # the fixed default too, if it is given explicitly
    assert config.options == {"temperature": 0.2, "queue": 64}


@pytest.mark.parametrize(
    ("method", "name", "augment"),
    [
        ("corinfomax", "cifar", "asymmetric224"),
        ("mec", "imagenet", "mec"),
        ("ressl", "cifar", "ressl_cifar"),
        ("swav", "cifar", "symmetric"),
    ],
)
def test_published_recipes_have_the_policy_of_their_source(method: str, name: str, augment: str) -> None:
    assert recipe(method, name).settings["augment"] == augment


def test_every_published_recipe_names_its_policy() -> None:
    unnamed = [
        (method, name) for method, known in RECIPES.items() for name in known if "augment" not in known[name].settings
    ]
    assert not unnamed


def test_a_recipe_says_how_long_prototypes_are_frozen() -> None:
    """solo-learn, scripts/pretrain/cifar/swav.yaml: two epochs; SwAV's own script: 5,005 steps of 256, one epoch."""
    frozen = {
        name: resolve(PretrainConfig(method="swav", recipe=name)).method.heads.frozen_prototypes
        for name in ("cifar", "imagenet")
    }
    assert frozen == {"cifar": 2.0, "imagenet": 1.0}
    asked = PretrainConfig(method="swav", recipe="cifar", frozen_prototypes=0.5)
    assert resolve(asked).method.heads.frozen_prototypes == 0.5


@pytest.mark.parametrize("frozen", [0.0, 1.0])
def test_frozen_prototypes_stay_as_they_were(small_run, frozen: float) -> None:  # type: ignore[no-untyped-def]
    run = small_run(method="swav", prototypes=7, frozen_prototypes=frozen)
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    drawn = torch.allclose(state["network.prototypes.weight"].norm(dim=1), torch.ones(7), atol=1e-6)
    assert drawn == bool(frozen)  # they start as unit vectors, and a step changes their lengths


def test_heads_of_a_recipe_reach_the_network(small_run) -> None:  # type: ignore[no-untyped-def]
    run = small_run(method="swav", prototypes=7, projector=(9, 5), projector_norm=False, batch_size=32)
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert state["network.prototypes.weight"].shape == (7, 5)
    assert not any("network.student.1" in name and "running_mean" in name for name in state)
