"""One training step: augment, encode, gather, compute the loss. All randomness depends on the seed and the step."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Generator, Tensor
from torch.utils.data import DataLoader

from glf.config.training import ResolvedPretrainConfig
from glf.data.augment.augment import augment
from glf.data.augment.policies import ViewPolicy
from glf.data.batches import EpochBatches, to_tensor
from glf.data.images import ImageSet
from glf.data.shards.loader import StreamSampler
from glf.distributed import gather, rank, world_size
from glf.measure.batch import NonFiniteTracker, embedding_statistics
from glf.nn.backbone import Backbone
from glf.nn.features import encode_all, resize_to
from glf.nn.network import Network
from glf.nn.norms import frozen_batch_statistics
from glf.objective import Method, Objective, gradient_shares
from glf.train import optim
from glf.train.grad_cache import concatenate, embedding_gradients, split_views
from glf.types import Batch, Embeddings, Loss, Views


def batch_of(
    pixels: Tensor, images: ImageSet, indices: np.ndarray, prior: np.ndarray | None, device: torch.device
) -> Batch:
    """A batch of some images on the device, given what the network reads of them."""
    target, positions = torch.from_numpy(images.targets[indices]), torch.from_numpy(indices)
    of_prior = None if prior is None else torch.from_numpy(np.ascontiguousarray(prior)).to(device)
    return Batch(pixels.to(device), target.to(device), positions.to(device), of_prior)


class Pretraining(L.LightningModule):
    """A network trained by an objective."""

    def __init__(
        self,
        *,
        network: Network,
        objective: Objective,
        method: Method,
        policy: tuple[ViewPolicy, ...],
        image_size: int,
        config: ResolvedPretrainConfig,
        steps_per_epoch: int,
        dataloader: Callable[[int, int], DataLoader[Batch]],  # of a rank and the number of processes
    ) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)  # faster on every device
        if config.compile:
            self.network.compile_backbone()
        self.objective, self.method, self.policy = objective, method, policy
        self.image_size, self.config, self.steps_per_epoch = image_size, config, steps_per_epoch
        self.dataloader = dataloader
        self.metrics: dict[str, Tensor] = {}  # of the last step, if it was logged
        self.nonfinite = NonFiniteTracker()
        self.automatic_optimization = config.accumulate == 1

    def train_dataloader(self) -> DataLoader[Batch]:
        loader = self.dataloader(rank(), world_size())
        # Lightning sets the epoch too, but in a resumed run only after the workers have started to read.
        assert isinstance(loader.sampler, EpochBatches | StreamSampler)
        loop: Any = self.trainer.fit_loop
        epoch, batch = loop.epoch_progress.current.processed, loop.epoch_loop.batch_progress.current.ready
        loader.sampler.begin(epoch, batch % self.steps_per_epoch)
        return loader

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout and the like use the global generator: a resumed run must find it in the same state.
        torch.manual_seed(self._seed_of_step(rank()))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        views = self._views(batch)
        self.objective.set_epoch(self.global_step / self.steps_per_epoch)
        loss = self._loss(self.network(views)) if self.automatic_optimization else self._step_in_chunks(views)
        total: Tensor = loss.total
        self.log("loss", total.detach(), on_step=False, on_epoch=True, batch_size=len(batch.indices))
        return total

    def _views(self, batch: Batch) -> Views:
        generator = Generator().manual_seed(self._seed_of_step())
        place = {"rank": rank(), "world": world_size()}
        views = augment(batch, self.policy, self.image_size, generator, self.config.colours, **place)
        prior = None if views.prior is None else views.prior.to(self.dtype)
        x = tuple(x.to(self.dtype, memory_format=torch.channels_last) for x in views.x)
        clean = None
        if "clean" in self.network.needs:
            clean = resize_to(batch.images.to(self.dtype) / 255, self.image_size)
            clean = clean.contiguous(memory_format=torch.channels_last)
        return views._replace(x=x, prior=prior, clean=clean)

    def _step_in_chunks(self, views: Views) -> Loss:
        """A whole step including the optimizer's, with the activations of one chunk in memory at a time."""
        count = self.config.accumulate
        chunks = list(enumerate(split_views(views, count)))
        with torch.no_grad():
            batch = concatenate([self._encoded(number, chunk) for number, chunk in chunks])
        loss = self._loss(batch)
        gradients = embedding_gradients(loss.total, batch, self.objective)
        optimizer, scheduler = cast(Any, self.optimizers()), cast(Any, self.lr_schedulers())
        optimizer.zero_grad()
        strategy = self.trainer.strategy
        with frozen_batch_statistics(self.network):
            for number, chunk in chunks:
                alone = isinstance(strategy, ParallelStrategy) and number < count - 1  # synchronise at the last chunk
                with strategy.block_backward_sync() if alone else nullcontext():  # type: ignore[attr-defined]
                    e = self._encoded(number, chunk, with_teacher=False)
                    self.manual_backward(gradients.surrogate_loss(e, number, count))
        optimizer.step()
        scheduler.step()
        return loss

    def _encoded(self, number: int, part: Views, with_teacher: bool = True) -> Embeddings:
        """Encode a chunk; both forward passes use the same dropout masks."""
        torch.manual_seed(self._seed_of_step(rank(), number))
        e: Embeddings = self.network(part, with_teacher)
        return e

    def _loss(self, embeddings: Embeddings) -> Loss:
        everyone = gather(embeddings)
        loss: Loss = self.objective(everyone)
        self._track_nonfinite(everyone.z, loss)
        self.metrics = {}
        if self.global_step % self.config.log_every == 0:
            outputs = (embeddings.z, embeddings.r, embeddings.maps)
            shares = gradient_shares(loss, *(x for x in outputs if x is not None))
            shares = {name: share for name, share in shares.items() if name[6:] not in self.objective.inactive}
            self.metrics = {
                **loss.log(),
                **shares,
                **self.objective.diagnose(everyone),
                **embedding_statistics(everyone),
            }
        return loss

    def _track_nonfinite(self, z: Tensor, loss: Loss) -> None:
        """Track whether z, the terms and the gradient at z are finite; steps are counted as in metrics.jsonl."""
        step = self.global_step + 1
        self.nonfinite.note(step, {"z": z, **{k: v for k, v in loss.log().items() if k != "loss"}})
        # With 16-mixed, scaled gradients may overflow; the scaler skips those steps.
        if z.requires_grad and self.config.precision != "16-mixed":
            z.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self.nonfinite.note(step, {"gradient": gradient})
            )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        prototypes = self.network.prototypes
        if prototypes is not None and self.global_step < self.method.heads.frozen_prototypes * self.steps_per_epoch:
            prototypes.weight.grad = None

    def configure_optimizers(self) -> OptimizerLRScheduler:
        trained = torch.nn.ModuleList([self.network, self.objective])
        special = self.special_rates()
        optimizer, scheduler = optim.build(trained, self.config, steps_per_epoch=self.steps_per_epoch, special=special)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def special_rates(self) -> list[optim.Part]:
        """Parameters with a learning rate of their own."""
        predictor = self.network.predictor
        fixed = predictor is not None and self.method.heads.fixed_predictor_lr
        return [optim.constant(predictor)] if fixed and predictor is not None else []

    def features(self, images: ImageSet, indices: np.ndarray) -> Tensor:
        """The backbone's features of some images as they are, on the CPU."""
        return encode_all(self.backbone, images, indices, size=self.image_size, device=self.device)

    @torch.no_grad()
    def held_out_embeddings(self, images: ImageSet, indices: np.ndarray, prior: np.ndarray | None) -> Embeddings:
        """Embeddings of augmented views of some images, like those of a training batch."""
        views = self._views(self._held_out_batch(images, indices, prior))
        e: Embeddings = self.network(views)
        return replace(e.in_full_precision(), indices=views.indices)

    def _held_out_batch(self, images: ImageSet, indices: np.ndarray, prior: np.ndarray | None) -> Batch:
        return batch_of(to_tensor(images.pixels[indices]), images, indices, prior, self.device)

    def compare_with_start(self, indices: np.ndarray, features: Tensor) -> dict[str, float]:
        """Values that compare the features of some images with those before training, for the online probe."""
        return {}

    @property
    def backbone(self) -> Backbone:
        """The backbone, which training returns."""
        return self.network.backbone

    def _seed_of_step(self, *numbers: int) -> int:
        return int(
            np.random.SeedSequence([self.config.seed, self.global_step, *(numbers or (0,))]).generate_state(1)[0]
        )
