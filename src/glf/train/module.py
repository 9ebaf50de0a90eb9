"""One training step: augment, encode, gather, judge. Everything random in it follows from seed, step and rank."""

from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Generator, Tensor
from torch.utils.data import DataLoader

from glf.config import PretrainConfig
from glf.data.augment import augment
from glf.data.loader import EpochBatches
from glf.data.streamed import StreamSteps
from glf.data.views import View
from glf.measure.batch import shape
from glf.method import Method
from glf.nn.network import Network
from glf.nn.teacher import momentum_at
from glf.objective import Objective, gradient_shares
from glf.train import optim
from glf.train.distributed import gather, rank, world_size
from glf.train.finite import FirstBad
from glf.types import Batch, Loss


class Pretraining(L.LightningModule):
    """A network under an objective."""

    def __init__(
        self,
        *,
        network: Network,
        objective: Objective,
        method: Method,
        recipe: tuple[View, ...],
        image_size: int,
        config: PretrainConfig,
        steps_per_epoch: int,
        make_loader: Callable[[int, int], DataLoader[Batch]],
    ) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)  # faster on every device
        if config.compile:
            self.network.compile_backbone()
        self.objective, self.method, self.recipe = objective, method, recipe
        self.image_size, self.config, self.steps_per_epoch = image_size, config, steps_per_epoch
        self.make_loader = make_loader
        self.metrics: dict[str, Tensor] = {}  # of the last step, when it was one to log
        self.first_bad = FirstBad()

    def train_dataloader(self) -> DataLoader[Batch]:
        loader = self.make_loader(rank(), world_size())
        # Lightning sets the epoch too, but in a resumed run only after workers have begun to read.
        assert isinstance(loader.sampler, EpochBatches | StreamSteps)
        done: Any = self.trainer.fit_loop.epoch_progress.current
        loader.sampler.set_epoch(done.processed)
        return loader

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout and the like draw from the global generator: a resumed run meets it in the same state.
        torch.manual_seed(self._seed_of_step())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        generator = Generator().manual_seed(self._seed_of_step())
        views = augment(batch, self.recipe, self.image_size, generator, self.config.colours)
        prior = None if views.prior is None else views.prior.to(self.dtype)
        x = tuple(x.to(self.dtype, memory_format=torch.channels_last) for x in views.x)
        views = views._replace(x=x, prior=prior)
        self.objective.at(self.global_step / self.steps_per_epoch)
        embeddings = self.network(views)
        everyone = gather(embeddings)
        loss = self.objective(everyone)
        self._watch(everyone.z, loss)
        self.metrics = {}
        if self.global_step % self.config.log_every == 0:
            shares = gradient_shares(loss, *(x for x in (embeddings.z, embeddings.maps) if x is not None))
            shares = {name: share for name, share in shares.items() if name[6:] not in self.objective.asleep}
            self.metrics = {**loss.log(), **shares, **self.objective.diagnose(everyone), **shape(everyone)}
        total: Tensor = loss.total
        self.log("loss", total.detach(), on_step=False, on_epoch=True, batch_size=len(batch.row))
        return total

    def _watch(self, z: Tensor, loss: Loss) -> None:
        """Note whether z, the terms and the gradient at z are finite; the step is counted as metrics.jsonl does."""
        step = self.global_step + 1
        self.first_bad.note(step, {"z": z, **{k: v for k, v in loss.log().items() if k != "loss"}})
        if (
            z.requires_grad and self.config.precision != "16-mixed"
        ):  # whose scaled gradients may overflow, and are skipped
            z.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self.first_bad.note(step, {"gradient": gradient})
            )

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if self.network.teacher is not None and self.method.teacher is not None:
            progress = self.global_step / (self.config.epochs * self.steps_per_epoch)
            momentum = momentum_at(progress, *self.method.teacher)
            self.network.teacher.follow(self.network.student, momentum)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        prototypes = self.network.prototypes
        if prototypes is not None and self.global_step < self.method.heads.frozen_prototypes * self.steps_per_epoch:
            prototypes.weight.grad = None

    def configure_optimizers(self) -> OptimizerLRScheduler:
        fixed = self.network.predictor if self.method.heads.fixed_predictor_lr else None
        trained = torch.nn.ModuleList([self.network, self.objective])
        optimizer, scheduler = optim.build(trained, self.config, steps_per_epoch=self.steps_per_epoch, constant=fixed)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _seed_of_step(self) -> int:
        return int(np.random.SeedSequence([self.config.seed, self.global_step, rank()]).generate_state(1)[0])
