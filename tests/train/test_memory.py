"""The estimate of a step's memory is that of torch, and a step that cannot fit is refused before it."""

from dataclasses import replace

import pytest
import torch

from glf.config.training import PretrainConfig, with_defaults
from glf.nn.backbone import Backbone
from glf.train.memory import check_step, kept_bytes


@pytest.mark.parametrize("name", ["small_resnet", "timm:test_vit"])
def test_what_is_kept_is_what_autograd_keeps(name: str) -> None:
    backbone = Backbone(name, channels=3, image_size=160).train()
    weights = {value.untyped_storage().data_ptr() for value in backbone.parameters()}
    kept: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        _out = backbone(torch.rand(2, 3, 160, 160))
    real = sum(size for storage, size in kept.items() if storage not in weights) / 2
    assert kept_bytes(backbone, 160) == pytest.approx(real, rel=0.1)


def test_a_step_that_cannot_fit_is_refused_and_chunks_and_processes_share_it() -> None:
    config = with_defaults(PretrainConfig(batch_size=4096, device="cpu"))
    backbone = Backbone("small_resnet", channels=3, image_size=5000)
    with pytest.raises(ValueError, match=r"4,096 images of 5,000 px needs at least [\d,]+ GB, .* has \d+: a smaller"):
        check_step(backbone, 5000, config)
    check_step(backbone, 32, config)
    check_step(backbone, 1000, replace(config, batch_size=32, accumulate=32))
