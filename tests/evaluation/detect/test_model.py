"""The C4 detector: its parts, its independence of the backbone, trained and frozen layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glf.config.evaluation import DetectOptions
from glf.evaluation.detect.model import ANCHORS, Detector, RegionAlign, anchor_sizes
from glf.nn.backbone import Backbone

SMALL: dict[str, Any] = {"detect_size": 64, "detect_shrink": 1.0, "detect_regions": 8, "detect_pool": 6}


def detector(backbone: Backbone | None = None, classes: int = 3, **settings: Any) -> Detector:
    torch.manual_seed(0)
    return Detector(backbone or tiny(), classes, DetectOptions(**{**SMALL, **settings}))


def tiny(**settings: Any) -> Backbone:
    torch.manual_seed(1)
    return Backbone("small_resnet", image_size=32, **settings)


def batch(masks: bool = False) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """An image with an object, and one without."""
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(3, 64, 80, generator=generator), torch.rand(3, 70, 64, generator=generator)]
    targets = [
        {"boxes": torch.tensor([[8.0, 8.0, 40.0, 48.0]]), "labels": torch.tensor([2])},
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)},
    ]
    if masks:
        shape = torch.zeros(1, 64, 80, dtype=torch.uint8)
        shape[:, 8:48, 8:40] = 1
        targets[0]["masks"], targets[1]["masks"] = shape, torch.zeros(0, 70, 64, dtype=torch.uint8)
    return images, targets


def trained(model: Detector, masks: bool = False) -> dict[str, Tensor]:
    """Losses of one step, and gradients in the model."""
    model.train()
    losses: dict[str, Tensor] = model(*batch(masks))
    torch.stack(list(losses.values())).sum().backward()
    return losses


@pytest.mark.parametrize(
    ("name", "image_size", "width", "stride", "top"),
    [
        ("small_resnet", 32, 128, 8, 256),
        ("small_resnet", 128, 128, 16, 256),
        ("timm:resnet18", 32, 256, 4, 512),
        ("timm:resnet26d", 128, 1024, 16, 2048),
        ("torchvision:resnet18", 128, 256, 16, 512),
    ],
)
def test_any_resnet_gives_boxes_and_masks(name: str, image_size: int, width: int, stride: int, top: int) -> None:
    model = detector(Backbone(name, image_size=image_size), detect_task="masks").eval()
    assert (model.rpn.head.conv[0][0].in_channels, model.roi_heads.box_roi_pool.stride) == (width, stride)
    assert model.roi_heads.box_predictor.cls_score.weight.shape == (4, top)
    assert model.roi_heads.mask_predictor.mask_fcn_logits.out_channels == 4
    with torch.no_grad():
        model.roi_heads.score_thresh = 0.0
        found = model(batch()[0])
    for image, one in zip(batch()[0], found, strict=True):
        count = len(one["boxes"])
        assert 0 < count <= 100
        assert one["masks"].shape == (count, 1, *image.shape[1:])
        assert set(one["labels"].tolist()) <= {1, 2, 3}


def test_pooled_regions_have_half_the_grid_after_conv5_and_masks_twice_that() -> None:
    model = detector(detect_task="masks", detect_pool=14).eval()
    maps = {"0": torch.rand(1, 128, 8, 10)}
    pooled = model.roi_heads.box_roi_pool(maps, [torch.tensor([[8.0, 8.0, 40.0, 48.0]])], [(64, 80)])
    assert pooled.shape == (1, 128, 14, 14)
    assert model.roi_heads.mask_head(pooled).shape == (1, 256, 7, 7)
    assert model.roi_heads.mask_predictor(model.roi_heads.mask_head(pooled)).shape == (1, 4, 14, 14)
    assert model.roi_heads.box_head(pooled).shape == (1, 256)


def test_boxes_and_masks_share_conv5_and_the_backbone_is_not_changed() -> None:
    backbone = tiny()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    model = detector(backbone, detect_task="masks", detect_norm="batch")
    assert model.roi_heads.mask_head is model.roi_heads.box_head.stage
    for stage in ("conv1", "bn1", "layer1", "layer2", "layer3"):
        ours, theirs = getattr(model.backbone, stage), getattr(backbone.body, stage)
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    trained(model, masks=True)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert not torch.equal(model.backbone.conv1.weight, backbone.body.conv1.weight)


def test_images_are_normalised_once_and_padded_with_the_mean() -> None:
    backbone = tiny(mean=(0.2, 0.3, 0.4), std=(0.1, 0.2, 0.5)).eval()
    model = detector(backbone).eval()
    seen: list[Tensor] = []
    maps: list[Tensor] = []
    model.backbone.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model.backbone.register_forward_hook(lambda _, __, out: maps.append(out))
    image = torch.rand(3, 64, 64)
    with torch.no_grad():
        model([image])
        torch.testing.assert_close(seen[0][0], (image - backbone.mean[0]) / backbone.std[0])
        # The same features as those of the backbone: conv5 of conv4's feature map, averaged.
        conv5 = model.roi_heads.box_head.stage
        torch.testing.assert_close(conv5(maps[0]).mean((2, 3)), backbone(image[None]))
        model([torch.rand(3, 64, 70)])
    assert seen[1].shape[-1] == 96
    assert (seen[1][..., 70:] == 0).all()  # the mean, after normalisation


@pytest.mark.parametrize("task", ["boxes", "masks"])
def test_the_gradient_reaches_conv5_and_the_stem(task: str) -> None:
    model = detector(detect_task=task)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)  # timm initialises residual branches with zero, which blocks the gradient
    losses = trained(model, masks=task == "masks")
    names = {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    assert set(losses) == (names | {"loss_mask"} if task == "masks" else names)
    assert all(torch.isfinite(loss) for loss in losses.values())
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # The regression of classes without regions has no gradient; everything else has, including normalisations.
    assert [name for name in without if "bbox_pred" not in name and "mask_fcn" not in name] == []


@pytest.mark.parametrize("freeze", [0, 1, 2, 3, 4])
def test_frozen_and_trained_stages(freeze: int) -> None:
    model = detector(detect_freeze=freeze)
    trained(model)
    stages: list[nn.Module] = [nn.ModuleList([model.backbone.conv1, model.backbone.bn1])]
    stages += [model.backbone.layer1, model.backbone.layer2, model.backbone.layer3, model.roi_heads.box_head.stage]
    got = [all(p.grad is not None for p in stage.parameters()) for stage in stages]
    assert got == [i >= freeze for i in range(5)]
    assert freeze == 0 or all(p.grad is None for p in stages[0].parameters())


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics of all pretrained layers, without the new one after conv5."""
    new = "roi_heads.box_head.norm."
    return {n: value.clone() for n, value in model.named_buffers() if "running" in n and not n.startswith(new)}


def test_running_statistics_are_frozen_by_default() -> None:
    model = detector()
    before = statistics(model)
    assert len(before) > 10
    trained(model)
    assert all(torch.equal(value, before[name]) for name, value in statistics(model).items())
    assert model.roi_heads.box_head.norm.running_mean.abs().sum() > 0
    model = detector(detect_norm="batch", detect_freeze=2)
    before = statistics(model)
    trained(model)
    same = {name for name, value in statistics(model).items() if torch.equal(value, before[name])}
    assert same == {name for name in before if name.startswith(("backbone.bn1", "backbone.layer1"))}


def test_region_align_of_a_ramp_by_hand() -> None:
    # Cell x of a feature map with stride 4 has its centre at pixel 4 x + 2 and the value x. The box from 8 to 24 has
    # two bins with centres 12 and 20, where the ramp has the values 2.5 and 4.5.
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    pooled = RegionAlign(2, 4)({"0": ramp}, [torch.tensor([[8.0, 4.0, 24.0, 20.0]])], [(32, 32)])
    torch.testing.assert_close(pooled, torch.tensor([[[[2.5, 4.5], [2.5, 4.5]]]]))


def test_anchors_scale_with_the_images() -> None:
    assert anchor_sizes(800) == ANCHORS
    assert anchor_sizes(160) == (6, 13, 26, 51, 102)
    model = detector(detect_size=800)
    cells = model.rpn.anchor_generator.cell_anchors[0]
    assert cells.shape == (15, 4)
    torch.testing.assert_close(cells[5:10, 2] * 2, torch.tensor(ANCHORS, dtype=torch.float32))  # the squares


def test_training_images_have_several_sizes_and_test_images_one() -> None:
    model = detector(detect_size=100, detect_shrink=0.6)
    sizes = set()
    for _ in range(60):
        sizes.add(min(model.train().transform([torch.rand(3, 100, 120)])[0].image_sizes[0]))
    assert (min(sizes), max(sizes)) == (60, 100)
    assert model.eval().transform([torch.rand(3, 50, 60)])[0].image_sizes[0] == (100, 120)
    assert model.transform([torch.rand(3, 50, 500)])[0].image_sizes[0][1] == 167  # 1333 to 800


def test_other_backbones_than_resnets_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"convnext_atto has no conv1 .* layer4: a C4 detector needs a ResNet, such as small_r"
    ):
        detector(Backbone("timm:convnext_atto", image_size=32))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"detect_size": 0}, "detect_size must be at least 1, got 0"),
        ({"detect_regions": 1}, "detect_regions must be at least 2, got 1"),
        ({"detect_lr": ()}, r"detect_lr needs at least one value, got \(\)"),
        ({"detect_lr": (0.1, -1.0)}, "detect_lr must be above 0"),
        ({"detect_shrink": 1.5}, r"detect_shrink must be at most 1, got 1\.5"),
        ({"detect_freeze": 5}, "detect_freeze must be at most 4, got 5"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DetectOptions(**settings)
