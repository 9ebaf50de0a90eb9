"""Random inputs, and the comparison of a function with its loops."""

from collections.abc import Callable

import torch
from torch import Tensor


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_fields(*, views: int = 2, batch: int = 6, dim: int = 4, width: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Every field of Embeddings that a network produces. Views are correlated, and not centred or scaled."""
    image = draw(batch, dim, seed=seed)
    noise = draw(4, views, batch, dim, seed=seed + 1)
    z, p, teacher, generated = 0.7 * (image + 0.5 * noise) + 0.3
    corners = torch.rand(views, batch, 4, generator=torch.Generator().manual_seed(seed + 3), dtype=torch.float64)
    return {
        "z": z,
        "h": draw(views, batch, dim + 1, seed=seed + 4),
        "r": draw(views, batch, width, seed=seed + 8),
        "p": p,
        "teacher": teacher,
        "generated": generated,
        "maps": draw(views, batch, 4, 3, seed=seed + 5),
        "boxes": corners,
        "scores": draw(views, batch, 3, seed=seed + 6),
        "target": torch.arange(batch) % 3,
        "indices": torch.arange(batch).flip(0),
        "prior": draw(batch, width, seed=seed + 2),
        "clean": image,
        "prototypes": draw(5, dim, seed=seed + 7),
        "teacher_prototypes": draw(5, dim, seed=seed + 9),
        "instance_scores": draw(views, batch, batch + 2, seed=seed + 10),
        "instance": 1 + torch.arange(batch).flip(0),
    }


def same(ours: Callable[..., Tensor], loops: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Check that both have the same value and, for a fixed random cotangent, the same gradients; return ours."""
    return same_up_to(1e-10, ours, loops, *inputs)


def same_up_to(
    tolerance: float, ours: Callable[..., Tensor], loops: Callable[..., Tensor], *inputs: Tensor
) -> list[Tensor]:
    """The same with another relative tolerance."""
    results = []
    for function in (ours, loops):
        leaves = [x.clone().requires_grad_() for x in inputs]
        value = function(*leaves)
        cotangent = draw(*value.shape, seed=7)
        gradients = torch.autograd.grad(value, leaves, cotangent, allow_unused=True)
        zeros = [torch.zeros_like(x) for x in inputs]
        results.append([value, *(z if g is None else g for g, z in zip(gradients, zeros, strict=True))])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance / 100)
    return results[0][1:]


def check(ours: Callable[..., Tensor], loops: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Check a pure function: value and gradients against its loops, and gradients against finite differences."""
    same(ours, loops, *inputs)
    assert torch.autograd.gradcheck(ours, [x.clone().requires_grad_() for x in inputs])
