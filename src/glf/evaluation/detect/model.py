"""Faster R-CNN and Mask R-CNN with a C4 backbone, built from a pretrained ResNet."""

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import AnchorGenerator, RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import roi_align

from glf.config.evaluation import DetectOptions
from glf.nn.backbone import Backbone

PAPER_SIZE = 800  # shorter side in MoCo's protocol; the sizes below refer to it
ANCHORS = (32, 64, 128, 256, 512)
RATIOS = (0.5, 1.0, 2.0)
LONGEST = 1333
SCALES = 11  # training sizes: 480, 512, ... 800
MASK_WIDTH = 256
_STAGES = ("conv1", "bn1", "maxpool", "layer1", "layer2", "layer3", "layer4")


class Detector(GeneralizedRCNN):  # type: ignore[misc]
    r"""Images in [0, 1] -> losses in training; boxes, scores and masks in evaluation.

    .. math:: \text{image} \to \text{conv4} \to \text{proposals}, \qquad
              \text{conv4 in a region} \to \text{RoIAlign} \to \text{conv5} \to \text{class, box, mask}

    Reference: Ren et al. 2015 and He et al. 2017, with the C4 backbone of He et al. 2016; the protocol of He et al.
    2020 (MoCo), section 4.2: all layers are trained.

    Differs from the paper: with ``detect_norm`` "frozen", batch normalisation uses the running statistics of
    pretraining, while its scales and shifts are trained. Batches are small here, and conv5 sees many overlapping
    regions of each image, so batch statistics would be noisy in training and differ from those at test time; MoCo
    synchronises them over many GPUs. MoCo adds a normalisation of conv5's feature map. Here it normalises the mean of
    that map, so that the mask branch, which sees other regions, is unaffected; it is a new layer and always has its own
    statistics.
    """

    def __init__(self, backbone: Backbone, classes: int, options: DetectOptions) -> None:
        body: Any = deepcopy(_resnet(backbone))
        activation = body.act1 if hasattr(body, "act1") else body.relu  # timm or torchvision
        stem = OrderedDict(conv1=body.conv1, bn1=body.bn1, act=activation, maxpool=body.maxpool)
        trunk = nn.Sequential(OrderedDict(**stem, layer1=body.layer1, layer2=body.layer2, layer3=body.layer3))
        width, stride, top = _shape(trunk, body.layer4, backbone.channels)
        align = RegionAlign(options.detect_pool, stride)
        regions = options.detect_regions
        anchors = AnchorGenerator((anchor_sizes(options.detect_size),), (RATIOS,))
        proposals = RegionProposalNetwork(
            anchors,
            RPNHead(width, anchors.num_anchors_per_location()[0]),
            fg_iou_thresh=0.7,
            bg_iou_thresh=0.3,
            batch_size_per_image=256,
            positive_fraction=0.5,
            pre_nms_top_n={"training": 24 * regions, "testing": 12 * regions},  # 512 regions: 12,000 and 6,000
            post_nms_top_n={"training": 4 * regions, "testing": 2 * regions},  # 512 regions: 2,000 and 1,000
            nms_thresh=0.7,
        )
        masks = options.detect_task == "masks"
        heads = RoIHeads(
            align,
            BoxHead(body.layer4, top),
            _predictor(top, classes + 1),
            fg_iou_thresh=0.5,
            bg_iou_thresh=0.5,
            batch_size_per_image=regions,
            positive_fraction=0.25,
            bbox_reg_weights=None,
            score_thresh=0.05,
            nms_thresh=0.5,
            detections_per_img=100,
            mask_roi_pool=align if masks else None,
            mask_head=body.layer4 if masks else None,  # conv5, shared with the box head
            mask_predictor=MaskRCNNPredictor(top, MASK_WIDTH, classes + 1) if masks else None,
        )
        super().__init__(trunk, proposals, heads, _transform(backbone, options))
        self.norm, self.freeze = options.detect_norm, options.detect_freeze
        for module in self._frozen():
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> "Detector":
        super().train(mode)
        pretrained = [self.backbone, self.roi_heads.box_head.stage] if self.norm == "frozen" else self._frozen()
        for module in (module for part in pretrained for module in part.modules()):
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def _frozen(self) -> list[nn.Module]:
        """The first ``detect_freeze`` stages of the trunk."""
        trunk = self.backbone
        stages = [[trunk.conv1, trunk.bn1], [trunk.layer1], [trunk.layer2], [trunk.layer3]]
        return [part for stage in stages[: self.freeze] for part in stage]


class RegionAlign(nn.Module):
    """RoIAlign of the conv4 feature map to a grid of size x size.

    With ``aligned=True`` (no offset of half a pixel), which torchvision's MultiScaleRoIAlign does not offer.
    """

    def __init__(self, size: int, stride: int) -> None:
        super().__init__()
        self.size, self.stride = size, stride

    def forward(
        self, maps: dict[str, Tensor], boxes: list[Tensor], image_sizes: Sequence[tuple[int, int]]
    ) -> Float[Tensor, "region channel row column"]:
        pooled: Tensor = roi_align(maps["0"], boxes, self.size, 1 / self.stride, sampling_ratio=2, aligned=True)
        return pooled


class BoxHead(nn.Module):
    """conv5, then the mean of its feature map, batch-normalised: learning rates do not depend on the feature scale."""

    def __init__(self, stage: nn.Module, width: int) -> None:
        super().__init__()
        self.stage, self.norm = stage, nn.BatchNorm1d(width)

    def forward(self, x: Float[Tensor, "region channel row column"]) -> Float[Tensor, "region feature"]:
        out: Tensor = self.norm(self.stage(x).mean((2, 3)))
        return out


def anchor_sizes(size: int) -> tuple[int, ...]:
    """Sides of the anchors for images with this shorter side: 32 to 512 at 800 px, proportional otherwise.

    >>> anchor_sizes(400)
    (16, 32, 64, 128, 256)
    """
    return tuple(max(1, round(side * size / PAPER_SIZE)) for side in ANCHORS)


def _resnet(backbone: Backbone) -> nn.Module:
    missing = [name for name in _STAGES if not hasattr(backbone.body, name)]
    if missing:
        raise ValueError(
            f"{backbone.name} has no {' '.join(missing)}: a C4 detector needs a ResNet, such as small_resnet,"
            " timm:resnet18 or torchvision:resnet18"
        )
    return backbone.body


@torch.no_grad()
def _shape(trunk: nn.Module, conv5: nn.Module, channels: int) -> tuple[int, int, int]:
    """Channels and stride of conv4's feature map, and channels of conv5's, from one blank image."""
    side, first = 128, next(trunk.parameters())
    maps = trunk.eval()(torch.zeros(1, channels, side, side, device=first.device))
    return int(maps.shape[1]), side // int(maps.shape[2]), int(conv5.eval()(maps).shape[1])


def _predictor(width: int, classes: int) -> nn.Module:
    """Class scores and box regression, with the small initial weights of Girshick 2015 to protect the backbone."""
    predictor: Any = FastRCNNPredictor(width, classes)
    for layer, std in ((predictor.cls_score, 0.01), (predictor.bbox_pred, 0.001)):
        nn.init.normal_(layer.weight, std=std)
        nn.init.zeros_(layer.bias)
    return predictor  # type: ignore[no-any-return]


def _transform(backbone: Backbone, options: DetectOptions) -> nn.Module:
    """Resizing and normalisation. Training images get one of several sizes, test images the largest.

    The backbone's normalisation happens here and not in the trunk, so that the padding, which comes later, has the
    value of the mean.
    """
    largest, shrink = options.detect_size, options.detect_shrink
    sizes = [round(largest * (shrink + (1 - shrink) * i / (SCALES - 1))) for i in range(SCALES)]
    transform: nn.Module = GeneralizedRCNNTransform(
        min_size=sizes if shrink < 1 else [largest],
        max_size=round(largest * LONGEST / PAPER_SIZE),
        image_mean=backbone.mean.flatten().tolist(),
        image_std=backbone.std.flatten().tolist(),
    )
    return transform
