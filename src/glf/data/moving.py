"""Small tensors on their way from the CPU, where everything random is drawn, to the device of the images."""

import torch
from torch import Tensor


def moved(value: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for what it is busy with.

    Except on Apple's, where torch would go on before a tensor that is about to be freed has been read.
    """
    return value.to(device, non_blocking=device.type != "mps")
