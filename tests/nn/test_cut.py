"""Models cut into a frozen trunk and a trained tail, which give the features of the whole and share its layers."""

import pytest
import torch
from torch import Tensor, nn

from glf.nn.backbone import Backbone
from glf.nn.cut import cut, default_tail, find_stages, norm_parameters

LAYERS = ["layer1", "layer2", "layer3", "layer4"]
MODELS = {  # name: image size, stages
    "small_resnet": (16, LAYERS),
    "timm:resnet18": (32, LAYERS),
    "timm:tf_efficientnet_lite0": (32, [f"blocks.{i}" for i in range(7)]),
    "timm:convnext_atto": (64, [f"stages.{i}" for i in range(4)]),
    "timm:regnetx_002": (32, ["s1", "s2", "s3", "s4"]),
    "timm:vit_tiny_patch16_224": (32, [f"blocks.{i}" for i in range(12)]),
    "torchvision:resnet18": (32, LAYERS),
    "torchvision:efficientnet_b0": (32, [f"features.{i}" for i in range(1, 8)]),
}


def backbone(name: str, size: int) -> Backbone:
    torch.manual_seed(0)
    made = Backbone(name, channels=3, image_size=size, stem="standard", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    with torch.no_grad():  # statistics that a forgotten evaluation mode would change, and scales that matter
        for layer in made.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.uniform_(-0.2, 0.2)
                layer.running_var.uniform_(0.5, 1.5)
                layer.weight.uniform_(0.5, 1.5)  # timm's last one of a block is zero: nothing would pass
    return made.eval()


def wrapped(body: nn.Module) -> Backbone:
    """A backbone with a body of our own."""
    made = Backbone("small_resnet", channels=3, image_size=16)
    made.body = body
    return made.eval()


@pytest.mark.parametrize("name", MODELS)
def test_both_halves_give_the_features_of_the_whole(name: str) -> None:
    size, stages = MODELS[name]
    whole = backbone(name, size)
    x = torch.rand(3, 3, size, size)
    assert find_stages(whole.body) == stages
    halves = cut(whole)
    count = default_tail(halves.of)
    assert halves.stages == tuple(stages[-count:])
    with torch.no_grad():
        features = whole(x)
        assert features.std() > 0
        torch.testing.assert_close(halves.tail(halves.trunk(x)), features, rtol=1e-5, atol=1e-6)
    assert halves.tail.width == whole.width


@pytest.mark.parametrize("tail", [1, 2, 3])
def test_every_stage_but_the_first_can_begin_the_tail(tail: int) -> None:
    whole = backbone("small_resnet", 16)
    x = torch.rand(2, 3, 16, 16)
    halves = cut(whole, tail)
    assert halves.stages == tuple(LAYERS[-tail:])
    assert halves.of == 4
    assert torch.equal(halves.tail(halves.trunk(x)), whole(x))
    shapes = {1: (128, 1, 1), 2: (64, 2, 2), 3: (32, 4, 4)}
    assert halves.trunk(x).shape[1:] == shapes[tail]


def test_grey_images_and_other_sizes_pass_the_trunk_of_a_colour_model() -> None:
    whole = backbone("small_resnet", 16)
    halves = cut(whole)
    x = torch.rand(2, 1, 24, 24)
    assert torch.equal(halves.tail(halves.trunk(x)), whole(x))


def test_training_the_tail_trains_these_parameters_of_the_model_and_no_others() -> None:
    whole = backbone("small_resnet", 16).requires_grad_(False)
    halves = cut(whole)
    halves.tail.requires_grad_(True)
    before = {name: p.detach().clone() for name, p in whole.named_parameters()}
    optimizer = torch.optim.SGD([p for p in whole.parameters() if p.requires_grad], lr=0.1)
    x = torch.rand(4, 3, 16, 16)
    old = whole(x).detach()
    halves.tail(halves.trunk(x)).pow(2).mean().backward()
    optimizer.step()
    changed = {name for name, p in whole.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if name.startswith("body.layer4.")}
    assert not torch.allclose(whole(x), old)
    assert torch.equal(halves.tail(halves.trunk(x)), whole(x))


def test_the_mode_of_the_model_stays_as_it_was() -> None:
    whole = backbone("small_resnet", 16).train()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    cut(whole)
    assert whole.training
    assert whole.body.training
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items()), "statistics included"


class Reads(nn.Module):
    """Four stages; the last also reads what the first one has computed, or they get a list."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.stages = nn.ModuleList(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.stages[0](x)
        for stage in list(self.stages)[1:]:
            if self.how == "branches" and x.sum() > 1e9:
                return x.mean((2, 3))
            x = stage(x)
        return (x + first if self.how == "skips" else x).mean((2, 3))


class Pairs(nn.Module):
    """A stage that passes on two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.conv(x[0]), x[1]


class InPairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(Pairs() for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stages((x, x))
        return (a + b).mean((2, 3))


class Unused(nn.Module):
    """Its forward function uses the weights of its stages, not the stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean((2, 3))
        for stage in self.stages:
            x = x @ stage.weight
        return x


ADVICE = "use --train all or --train norms"


def test_a_model_like_these_with_a_plain_forward_function_can_be_cut() -> None:
    whole = wrapped(Reads("plainly"))
    halves = cut(whole, 2)
    x = torch.rand(2, 3, 16, 16)
    assert halves.stages == ("stages.2", "stages.3")
    assert torch.equal(halves.tail(halves.trunk(x)), whole(x))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (Reads("skips"), "layers after stages.3 also read the output of layers before it"),
        (Reads("branches"), "symbolically traced variables cannot be used as inputs to control flow"),
        (InPairs(), "what its stages pass on is no single tensor"),
        (Unused(), "its forward function does not call stages.2"),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(768, 2)), "no three of its layers in a row"),
        (nn.Flatten(), "no three of its layers in a row"),
    ],
    ids=["skips", "branches", "pairs", "unused", "two layers", "no parameters"],
)
def test_a_model_that_cannot_be_cut_is_refused_with_what_to_do(body: nn.Module, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        cut(wrapped(body))
    assert str(caught.value).endswith(ADVICE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tail", [0, 4, 9])
def test_a_tail_without_a_trunk_or_without_stages_is_refused(tail: int) -> None:
    with pytest.raises(
        ValueError, match=f"it has 4 stages, of which at least one stays frozen: --tail {tail}.*{ADVICE}"
    ):
        cut(backbone("small_resnet", 16), tail)


@pytest.mark.parametrize("name", ["small_resnet", "timm:convnext_atto", "timm:vit_tiny_patch16_224"])
def test_norm_parameters_are_scales_and_shifts(name: str) -> None:
    whole = backbone(name, 64)
    chosen = {id(p) for p in norm_parameters(whole)}
    names = {n for n, p in whole.named_parameters() if id(p) in chosen}
    layers = {n for n, layer in whole.named_modules() if isinstance(layer, nn.BatchNorm2d | nn.LayerNorm) and n}
    assert names == {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    assert all(p.ndim == 1 for p in norm_parameters(whole))
