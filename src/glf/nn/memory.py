"""State of a loss that persists between steps: queues, running covariances, clusters. Stored in every checkpoint.

A memory is updated only in training mode with gradients enabled, so evaluating a loss does not change it.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from glf.device import to_device


class Memory(nn.Module):
    """Buffers that get their shape from the first batch, or from a loaded checkpoint."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_buffer(name, torch.empty(0))

    @property
    def learning(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def _load_from_state_dict(self, state_dict: Any, prefix: Any, *args: Any, **kwargs: Any) -> None:
        # The buffers of a new module are empty: give them the saved shapes before torch compares shapes.
        for name, buffer in self.named_buffers(recurse=False):
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != buffer.shape:
                setattr(self, name, buffer.new_empty(saved.shape, dtype=saved.dtype))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def covariance_of(z: Float[Tensor, "sample dim"]) -> Float[Tensor, "dim dim"]:
    """Unbiased covariance matrix of the samples.

    >>> covariance_of(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    """
    centred = z - z.mean(0)
    return centred.T @ centred / max(len(z) - 1, 1)


class RunningCovariance(Memory):
    """Exponential moving average of batch covariances."""

    covariance: Tensor

    def __init__(self, momentum: float = 0.99) -> None:
        super().__init__("covariance")
        self.momentum = momentum

    def forward(self, z: Float[Tensor, "sample dim"]) -> Float[Tensor, "dim dim"]:
        """Update the average with this batch (in training) and return it."""
        now = covariance_of(z.detach())
        average = self.covariance.to(now) if self.covariance.numel() else now
        if self.learning:
            average = self.covariance = torch.lerp(now, average, self.momentum)
        return average


class RunningCentre(Memory):
    """Exponential moving average of the mean over images and views, 0 at first (DINO). ``old`` weighs the old value."""

    centre: Tensor

    def __init__(self, old: float = 0.9) -> None:
        super().__init__("centre")
        self.old = old

    def forward(self, values: Float[Tensor, "view batch dim"]) -> Float[Tensor, " dim"]:
        """Return the centre of the batches before, then update it with this one (in training)."""
        now = values.detach().mean((0, 1))
        before = self.centre.to(now) if self.centre.numel() else torch.zeros_like(now)
        if self.learning:
            self.centre = torch.lerp(now, before, self.old)
        return before


class RunningSecondMoments(Memory):
    """Exponential moving average of each view's second moments, 0 at first (TiCo). ``old`` weighs the old value."""

    moments: Tensor

    def __init__(self, old: float = 0.9) -> None:
        super().__init__("moments")
        self.old = old

    def forward(self, z: Float[Tensor, "view batch dim"]) -> Float[Tensor, "view dim dim"]:
        """Return the moments including this batch, without gradient."""
        fixed = z.detach()
        now = fixed.transpose(1, 2) @ fixed / z.shape[1]
        before = self.moments.to(now) if self.moments.numel() else torch.zeros_like(now)
        average = torch.lerp(now, before, self.old)
        if self.learning:
            self.moments = average
        return average


class RunningMoments(Memory):
    """Running mean and covariance of each view, with a gradient through the current batch (CorInfoMax).

    They start at zero and at the identity. ``old`` is the weight of the previous value.
    """

    mean: Tensor
    covariance: Tensor

    def __init__(self, old: float = 0.01) -> None:
        super().__init__("mean", "covariance")
        self.old = old

    def forward(self, z: Float[Tensor, "view batch dim"]) -> Float[Tensor, "view dim dim"]:
        """Return the covariances including this batch."""
        if self.mean.numel() == 0:
            self.mean = z.new_zeros(len(z), z.shape[2])
            self.covariance = torch.eye(z.shape[2], dtype=z.dtype, device=z.device).repeat(len(z), 1, 1)
        mean = torch.lerp(z.mean(1), self.mean.to(z), self.old)
        centred = z - mean.unsqueeze(1)
        now = centred.transpose(1, 2) @ centred / z.shape[1]
        covariance = torch.lerp(now, self.covariance.to(z), self.old)
        if self.learning:
            self.mean, self.covariance = mean.detach(), covariance.detach()
        return covariance


class Queue(Memory):
    """The last ``size`` keys of each view, newest first (MoCo); initially random directions from a fixed seed."""

    keys: Tensor

    def __init__(self, size: int) -> None:
        super().__init__("keys")
        self.size = size

    def forward(self, keys: Float[Tensor, "view batch dim"]) -> Float[Tensor, "view {self.size} dim"]:
        """Return the queue, then add these keys as unit vectors (in training)."""
        if self.keys.numel() == 0:
            shape, seeded = (len(keys), self.size, keys.shape[2]), Generator().manual_seed(0)
            random = torch.randn(shape, generator=seeded, dtype=torch.float32)  # the same whatever the default dtype
            self.keys = to_device(F.normalize(random, dim=2), keys.device).to(keys.dtype)
        before = self.keys.to(keys)
        if self.learning:
            # A new tensor, because this step's backward pass still needs the old one.
            self.keys = torch.cat((F.normalize(keys.detach(), dim=2), before), 1)[:, : self.size]
        return before


class CleanMemory(Memory):
    """Embeddings of the last ``size`` images, newest first, and the images' positions in the data set, -1 for none."""

    entries: Tensor
    indices: Tensor

    def __init__(self, size: int) -> None:
        super().__init__("entries", "indices")
        self.size = size

    def forward(
        self, u: Float[Tensor, "batch dim"], indices: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "{self.size} dim"], Int[Tensor, "{self.size}"]]:
        """Return the memory with this batch added; keep it (in training). An image is remembered once, the newest."""
        if self.entries.numel() == 0:
            self.entries = u.new_zeros(self.size, u.shape[1])
            self.indices = indices.new_full((self.size,), -1)
        entries = torch.cat((u.detach(), self.entries.to(u)))[: self.size]
        before = torch.where(torch.isin(self.indices, indices), -1, self.indices)
        remembered = torch.cat((indices, before))[: self.size]
        if self.learning:
            self.entries, self.indices = entries, remembered
        return entries, remembered


class Draws(Memory):
    """Random numbers inside a loss, seeded by the number of draws so far: all processes draw the same.

    The number of draws is in the checkpoint, so a resumed run continues the sequence.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed, self.count = seed, 0

    def generator(self) -> Generator:
        """A CPU generator for the next draw."""
        seed = int(np.random.SeedSequence([self.seed, self.count]).generate_state(1)[0])
        if self.learning:
            self.count += 1
        return Generator().manual_seed(seed)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.count)

    def set_extra_state(self, state: Tensor) -> None:
        self.count = int(state)


class Clusters(Memory):
    """K-means of the whole training set with several numbers of clusters (PCL), refreshed between epochs.

    For each number of clusters, ``assigned`` holds the cluster of every image, or -1 for images not trained on.
    """

    centres: Tensor  # (sum of counts, dim), unit vectors
    concentration: Tensor  # (sum of counts,), phi
    assigned: Tensor  # (len(counts), images)

    def __init__(self, counts: tuple[int, ...], temperature: float, warmup_epochs: int) -> None:
        super().__init__("centres", "concentration", "assigned")
        self.counts, self.temperature, self.warmup_epochs = counts, temperature, warmup_epochs

    @property
    def ready(self) -> bool:
        return self.centres.numel() > 0

    def refresh(self, z: Float[Tensor, "sample dim"], indices: Int[Tensor, " sample"], total: int, epoch: int) -> None:
        """Cluster the features again; ``indices`` are their images in a data set of ``total`` images."""
        from sklearn.cluster import KMeans

        unit = F.normalize(z.float().cpu(), dim=1)
        centres, concentrations, assigned = [], [], torch.full((len(self.counts), total), -1)
        for kind, count in enumerate(self.counts):
            if count > len(unit):
                raise ValueError(
                    f"{len(unit)} images are too few for {count} clusters: use fewer (--options clusters N)"
                )
            found = KMeans(count, n_init=1, max_iter=20, random_state=epoch).fit(unit.numpy())
            label, centre = torch.from_numpy(found.labels_).long(), torch.from_numpy(found.cluster_centers_).float()
            assigned[kind, indices.cpu()] = label
            concentrations.append(concentration(unit, label, centre, self.temperature))
            centres.append(F.normalize(centre, dim=1))
        device = z.device
        self.centres, self.concentration = torch.cat(centres).to(device), torch.cat(concentrations).to(device)
        self.assigned = assigned.to(device)


def concentration(
    z: Float[Tensor, "sample dim"],
    label: Int[Tensor, " sample"],
    centre: Float[Tensor, "cluster dim"],
    temperature: float,
) -> Float[Tensor, " cluster"]:
    r"""Concentration phi of each cluster: small for dense, large clusters; scaled so that the mean is the temperature.

    .. math:: \phi_c \propto \frac{\frac{1}{n_c} \sum_{i \in c} |z_i - c|}{\log(n_c + 10)}

    Reference: Li et al. 2021 (PCL), Eq. 12. As in their code, a cluster of one image gets the largest phi, and all phi
    are clipped to the 10th and 90th percentiles.
    """
    distance = (z - centre[label]).norm(dim=1)
    size = torch.bincount(label, minlength=len(centre))
    total = distance.new_zeros(len(centre)).index_add_(0, label, distance)
    phi = total / size.clamp_min(1) / (size + 10).to(distance).log()
    phi = torch.where(size > 1, phi, phi.max())
    phi = phi.clamp(phi.quantile(0.1), phi.quantile(0.9))
    return temperature * phi / phi.mean()
