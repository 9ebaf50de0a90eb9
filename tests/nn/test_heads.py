"""Layers of projectors and predictors."""

import pytest
import torch
from torch import nn

from glf.nn.heads import Heads, InstanceClassifier, mlp


def described(layer: nn.Module) -> str:
    match layer:
        case nn.Linear():
            return f"{layer.in_features}>{layer.out_features}" + ("+b" if layer.bias is not None else "")
        case nn.BatchNorm1d():
            return f"norm{layer.num_features}" + ("" if layer.affine else " plain")
    return type(layer).__name__


@pytest.mark.parametrize(
    ("widths", "options", "layers"),
    [
        ((8, 4), {}, "8>4+b"),
        ((8, 4, 2), {}, "8>4, norm4, ReLU, 4>2+b"),
        ((8, 6, 4, 2), {}, "8>6, norm6, ReLU, 6>4, norm4, ReLU, 4>2+b"),
        ((8, 4, 2), {"norm": False}, "8>4+b, ReLU, 4>2+b"),
        ((8, 4, 2), {"last_norm": True}, "8>4, norm4, ReLU, 4>2, norm2 plain"),
        ((8, 4, 2), {"norm": False, "last_norm": True}, "8>4+b, ReLU, 4>2, norm2 plain"),
    ],
)
def test_the_layers_of_an_mlp(widths, options, layers):
    assert ", ".join(map(described, mlp(widths, **options))) == layers


@pytest.mark.parametrize("last_norm", [False, True])
def test_last_norm_standardises_the_batch(last_norm):
    torch.manual_seed(0)
    z = mlp((8, 16, 4), last_norm=last_norm)(torch.randn(64, 8) + 3)
    standard = torch.allclose(z.mean(0), torch.zeros(4), atol=1e-5) and torch.allclose(
        z.std(0, unbiased=False), torch.ones(4), atol=1e-3
    )
    assert standard is last_norm


def test_the_projector_has_no_default():
    with pytest.raises(TypeError):
        Heads()
    heads = Heads(projector=(4,))
    assert (heads.norm, heads.last_norm, heads.predictor, heads.fixed_predictor_lr) == (True, False, (), False)


def test_an_instance_classifier_has_one_output_per_training_image():
    classifier = InstanceClassifier(3, torch.tensor([7, 2, 4]))
    assert classifier(torch.randn(2, 5, 3)).shape == (2, 5, 3)
    assert classifier.instances(torch.tensor([4, 2, 7])).tolist() == [1, 0, 2]
