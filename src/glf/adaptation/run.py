"""glf adapt: resolve, load, compute the activations of the frozen trunk once, train, keep the best weights, save."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glf import rundir
from glf.adaptation import activations as trunk_activations
from glf.adaptation.activations import Encoder
from glf.adaptation.announce import announce, log_choice
from glf.adaptation.choose import Comparison, Features, compare_weights
from glf.adaptation.module import Adaptation
from glf.adaptation.resolve import ResolvedAdaptation, resolve_adaptation, with_views
from glf.config.training import AdaptConfig
from glf.data.image_cache import cache_root
from glf.data.images import stratified_sample
from glf.device import seed_everything, torch_device
from glf.loggers import Loggers
from glf.malloc import retain_freed_memory
from glf.nn.cut import norm_parameters
from glf.nn.features import encode_all
from glf.nn.network import Network
from glf.nn.norms import estimate_statistics, folded_in_training
from glf.nn.pretrained import load_encoder
from glf.nn.recompute import checkpoint_activations
from glf.runfiles import ACTIVATIONS, LOG
from glf.train.callbacks import RunLog
from glf.train.inputs import ImageInputs, load_inputs
from glf.train.run import fit, save
from glf.types import Batch

REFERENCE_IMAGES = 2_000  # whose neighbours are compared with the frozen ones during training


def adapt(config: AdaptConfig, console: Console | None = None, callbacks: Sequence[L.Callback] = ()) -> dict[str, Any]:
    """Adapt an encoder and return the content of result.json, or {} for a dry run and on other ranks."""
    log = RunLog(console or Console())
    resolved = resolve_adaptation(config)
    inputs = load_inputs(resolved.run)
    assert isinstance(inputs, ImageInputs)
    inputs = inputs.only_used()
    check_images(resolved, inputs)
    resolved = with_views(resolved, inputs.images)
    for choice in resolved.run.choices:
        log(str(choice))
    with (
        rundir.create(resolved.config) as out,
        Loggers(out, resolved.config.logger, log) as loggers,
        retain_freed_memory(resolved.run.accelerator == "cpu"),
    ):
        if out is not None:
            log.open(out / LOG)
            rundir.note_skipped(out, inputs.images.skipped)
        encoder = prepare(resolved, inputs)
        announce(log, resolved, inputs, encoder)
        inputs.compute_prior(log)
        inputs.fill_bank(resolved.run.objective)
        encoder = encoder._replace(activations=compute_activations(resolved, inputs, encoder))
        module = build(resolved, inputs, encoder)
        same = SameEncoder(resolved.key)
        callbacks = [same, *callbacks]
        trained = fit(resolved.run, inputs, module, out, log, callbacks, loggers, bank_size=REFERENCE_IMAGES)
        if out is None:
            log("dry run: trained two steps, wrote nothing")
        if out is None or not trained.trainer.is_global_zero:
            return {}
        found = choose(resolved, inputs, module)
        log_choice(log, found)
        trained.probe.latest.clear()  # it measured the adapted weights, not the chosen ones
        trained.probe.mass = None  # the heads belong to the adapted weights
        return save(resolved.run, inputs, module, trained, out, log, kind="adapt", adaptation=found.described())


def check_images(resolved: ResolvedAdaptation, inputs: ImageInputs) -> None:
    """Refuse images that the encoder or the method cannot use."""
    channels = resolved.encoder.channels
    if inputs.images.channels > channels:
        raise ValueError(f"{inputs.images.name} is in colour, and {resolved.config.encoder} takes {channels} channel")
    inputs.check_labels(resolved.run)


class SameEncoder(L.Callback):
    """Refuses to resume with another encoder: the frozen trunk is not part of a checkpoint."""

    def __init__(self, key: str) -> None:
        self.key = key

    def state_dict(self) -> dict[str, Any]:
        return {"encoder": self.key}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.key != state_dict["encoder"]:
            raise ValueError("the encoder's weights differ from those at the start of the run: restore them")


def prepare(resolved: ResolvedAdaptation, inputs: ImageInputs) -> Encoder:
    """Freeze what is not trained; estimate the statistics of batch normalisation if the config says so."""
    config, backbone, halves = resolved.config, resolved.encoder, resolved.halves
    device = torch_device(config.device)
    backbone.to(device).requires_grad_(False)
    if config.norms == "data":
        estimate_statistics(backbone, inputs.images, inputs.train, device=device)
    if halves is not None:
        halves.trunk.to(device)
        halves.tail.to(device).requires_grad_(True)
        return Encoder(backbone, halves)
    for p in norm_parameters(backbone) if config.train == "norms" else backbone.parameters():
        p.requires_grad_(True)
    return Encoder(backbone, None)


def compute_activations(resolved: ResolvedAdaptation, inputs: ImageInputs, encoder: Encoder) -> np.ndarray | None:
    """The trunk's activations of all images and views, from the cache as far as they are there; None without views."""
    config = resolved.config
    if encoder.halves is None or not config.views:
        return None
    cached = trunk_activations.activation_cache(
        cache_root() / ACTIVATIONS, encoder.halves.trunk, inputs.images, resolved.run.policy, config
    )
    return trunk_activations.compute_activations(
        cached, encoder.halves.trunk, inputs.images, resolved.run.policy, config, torch_device(config.device)
    )


def build(resolved: ResolvedAdaptation, inputs: ImageInputs, encoder: Encoder) -> Adaptation:
    """Build the Lightning module: heads from the seed, the encoder as it is."""
    run, config = resolved.run, resolved.config
    seed_everything(config.seed)
    cached = encoder.activations is not None and encoder.halves is not None
    trained = encoder.halves.tail if cached and encoder.halves else encoder.backbone
    width = inputs.prior_width
    if config.checkpoint_activations:
        checkpoint_activations(encoder.backbone)
    rows = torch.from_numpy(inputs.train)
    network = Network(
        trained, run.method.heads, run.objective.needs, classes=len(inputs.classes), prior=width, rows=rows
    )
    assert config.image_size is not None
    if encoder.halves is not None and config.precision == "32-true" and torch_device(config.device) == "cpu":
        side = config.image_size
        example = torch.rand(2, encoder.backbone.channels, side, side, generator=torch.Generator().manual_seed(0))
        example = encoder.halves.trunk.eval()(example) if cached else example
        network.faster = [folded_in_training(trained.eval(), example)]
    module = Adaptation(
        whole=encoder.backbone,
        activations=encoder.activations,
        network=network,
        objective=run.objective,
        method=run.method,
        policy=run.policy,
        image_size=config.image_size,
        config=config,
        steps_per_epoch=inputs.count // config.batch_size,
        dataloader=partial(activation_batches, resolved, inputs, encoder) if cached else inputs.dataloader,
    )
    module.to(torch_device(config.device)).eval()
    count = min(len(inputs.train), REFERENCE_IMAGES)
    rows = inputs.train[stratified_sample(inputs.images.targets[inputs.train], count, config.seed)]
    module.reference = rows, module.features(inputs.images, rows)
    if network.relation is not None and inputs.prior is not None:
        start_at_prior(network.relation, module.reference[1], torch.from_numpy(np.array(inputs.prior[rows])))
    return module.train()


def activation_batches(
    resolved: ResolvedAdaptation, inputs: ImageInputs, encoder: Encoder, rank: int, world: int
) -> DataLoader[Batch]:
    """Batches of cached activations, of one process."""
    config = resolved.config
    assert encoder.activations is not None
    assert config.views is not None
    batches = trunk_activations.EpochViews(
        inputs.train,
        config.batch_size,
        config.seed,
        rank,
        world,
        views=config.views,
        kinds=len(resolved.run.policy),
        clean="clean" in inputs.needs,
    )
    reader = trunk_activations.ActivationReader(encoder.activations, inputs.images.targets, inputs.prior)
    pin = torch_device(config.device) == "cuda"
    return trunk_activations.activation_loader(reader, batches, workers=config.workers or 0, pin=pin)


@torch.no_grad()
def start_at_prior(head: nn.Linear, features: Tensor, prior: Tensor) -> None:
    """Set the linear head so that it maps the frozen features to the prior's, which are a linear function of them."""
    ones = torch.ones(len(features), 1)
    solution = torch.linalg.lstsq(torch.cat((features, ones), 1).double(), prior.double(), driver="gelsd").solution
    head.weight.copy_(solution[:-1].T)
    head.bias.copy_(solution[-1])


def choose(resolved: ResolvedAdaptation, inputs: ImageInputs, module: Adaptation) -> Comparison:
    """Compare frozen, adapted and averaged weights, and leave the best ones in the backbone."""
    config = resolved.config
    original = frozen = None
    module.to(torch_device(config.device)).eval()
    if config.norms == "data":  # the network before training already differed from the frozen encoder
        original = load_encoder(
            config.encoder, weights=config.weights, size=config.image_size, download=config.download
        )
        frozen = Features(
            partial(encode_all, original, inputs.images, device=module.device, size=original.image_size),
            partial(module.live_view_features, original, inputs.images),
        )
    found = compare_weights(
        module,
        inputs.images,
        inputs.train,
        inputs.val,
        seed=config.seed,
        frozen=frozen,
        choose=config.choose,
    )
    if original is not None and found.chosen.share == 0:
        module.backbone.load_state_dict(original.state_dict())
        module.activations = None  # they are those of another trunk
    return found
