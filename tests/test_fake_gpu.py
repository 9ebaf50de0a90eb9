"""On a fake GPU: objectives, memories, networks and views stay on the device, and a step never waits for it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fake_gpu import COPIES_BACK, COPIES_THERE, CUDA, READS, FakeGpu, GpuTensor, same_on_gpu
from glf.align.distance import Cosine
from glf.config.adc import AdcOptions
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS
from glf.data.augment.augment import augment
from glf.data.augment.policies import POLICIES
from glf.measure.batch import NonFiniteTracker, embedding_statistics
from glf.methods import METHODS, parse
from glf.nn.backbone import Backbone
from glf.nn.memory import Clusters
from glf.nn.network import Network
from glf.objective import Objective, gradient_shares
from glf.relations import CosineSoftmax, Gaussian, Labels, Nearest, Relate, StudentT, Uniform
from glf.terms import Banked
from glf.types import LEARNT, Batch, Embeddings
from reference import SMALL, draw, draw_fields

# --- the fake GPU itself


WAITING: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x[0, 0].item(), READS),
    "float": (lambda x: float(x.sum()), READS),
    "bool": (lambda x: bool((x > 0).any()), READS),
    "an if": (lambda x: 1 if x.sum() > 0 else 2, READS),
    "an integer as an index": (lambda x: x[x[0].argmax()], READS),
    "nonzero": (lambda x: x.nonzero(), READS),
    "a mask as an index": (lambda x: x[x > 0], READS),
    "unique": (lambda x: x.unique(), READS),
    "the check of a decomposition": (lambda x: torch.linalg.cholesky(x @ x.T), READS),
    "tolist": (lambda x: x.tolist(), COPIES_BACK),
    "cpu": (lambda x: x.cpu(), COPIES_BACK),
    "cpu in inference mode": (torch.inference_mode()(lambda x: (x + 1).cpu()), COPIES_BACK),
    "to another device": (lambda x: torch.ones(3).to(x.device), COPIES_THERE),
    "a new tensor of a list": (lambda x: torch.tensor([1.0, 2.0], device=x.device), COPIES_THERE),
    "an index on the CPU": (lambda x: x[torch.tensor([0, 2])], COPIES_THERE),
    "assignment from the CPU": (lambda x: x[0].copy_(torch.ones(3)), COPIES_THERE),
}


@pytest.mark.parametrize("what", WAITING)
def test_the_fake_gpu_notices_what_waits(what: str) -> None:
    function, reason = WAITING[what]
    with FakeGpu() as gpu:
        function(gpu.load(draw(3, 3)))
    assert gpu.waits == {"torch": [reason]}


def test_the_fake_gpu_knows_what_does_not_wait() -> None:
    with FakeGpu() as gpu:
        x = gpu.load(draw(3, 3)).requires_grad_()
        y = (x + torch.tensor(1.0)).masked_fill(x > 0, 0.0)[(x[0] > 0).long()] @ torch.eye(3, device=x.device).double()
        y = y + torch.ones(3).to("cuda", non_blocking=True)
        y[y.detach() > 1] = 0.0
        torch.stack([y.sum(), y.new_zeros(())]).sum().backward()
        assert (x.device, x.is_cuda, y.device, type(x.grad)) == (CUDA, True, CUDA, GpuTensor)
    assert gpu.waits == {}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.ones(3),
        lambda x: x @ torch.ones(3, 3, dtype=x.dtype),
        lambda x: torch.cat((x, torch.ones(3, 3))),
        lambda x: torch.stack((x.sum(), torch.tensor(0.0))),
        lambda x: torch.ones(3).add_(x[0]),
        lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.long)),
        lambda x: torch.where(torch.ones(3, dtype=torch.bool), x, 0.0),
    ],
)
def test_the_fake_gpu_refuses_to_mix_devices(function: Callable[[Tensor], Tensor]) -> None:
    with FakeGpu() as gpu, pytest.raises(RuntimeError, match="device"):
        function(gpu.load(draw(3, 3)))
    with FakeGpu() as gpu, pytest.raises(TypeError, match=r"cpu\(\) first"):
        gpu.load(draw(3)).numpy()


# --- objectives and their memories

Case = tuple[str, AdcOptions, dict[str, float]]
SPECS = [f"{method}{added}" for method in METHODS for added in ("", "+adc")]
CASES: dict[str, Case] = {spec: (spec, AdcOptions(), SMALL.get(spec.split("+")[0], {})) for spec in SPECS}
CASES |= {f"align+{name}": (f"align+{name}", AdcOptions(), {}) for name in TARGET_DISTRIBUTIONS}
CASES |= {
    f"simclr+adc {reading} {covariance}": ("simclr+adc", AdcOptions(reading=reading, covariance=covariance), {})
    for reading in ("calibrated", "paper")
    for covariance in ("batch", "running")
}
CASES |= {
    f"{spec} {target}": (spec, AdcOptions(target=target, perplexity=3.0, memory_size=9, prior_perplexity=3.0), {})
    for spec in ("simclr+adc", "byol+dcm")
    for target in ("clean", "memory", "centre", "prior")
}
CASES |= {f"simclr+adc at {at}": ("simclr+adc", AdcOptions(lpm_at=at), {}) for at in ("h", "bank")}
CASES["mec by determinants"] = ("mec", AdcOptions(), {"order": 0})
RELATIONS: dict[str, Callable[[], Relate]] = {
    "relation of nearest": lambda: Relate(Nearest("prior", k=3), CosineSoftmax(), "tv"),
    "relation of labels": lambda: Relate(Labels(), StudentT(perplexity=3.0), "js", among="views"),
    "relation of mixtures": lambda: Relate(
        0.9 * (Gaussian() * StudentT("prior")) + 0.1 * Uniform(), CosineSoftmax("r"), "reverse"
    ),
    "relation to a bank": lambda: Relate(StudentT("prior"), CosineSoftmax("r"), among="bank"),
}
# Where a loss waits for the GPU, and why. A place that is not listed fails the test, and so does one that never waits.
WAITS: dict[str, dict[str, str]] = {
    "align+mixture": {
        "constrain/target_distribution.py:dbscan": "scikit-learn finds the clusters, on the CPU",
        "constrain/target_distribution.py:mixture": "the number of clusters and their sizes decide what is drawn",
    },
    "mec by determinants": {
        "constrain/logdet.py:coding_length": "an undefined determinant is an error; the default is a series without one"
    },
}


def new_objective(case: str) -> Objective:
    if case in RELATIONS:
        objective = Objective(align=Cosine(), constrain=RELATIONS[case]())
    else:
        spec, adc, options = CASES[case]
        objective = parse(spec, adc).build(**options)
    for part in objective.modules():
        if isinstance(part, Banked) and part.reads_bank:
            part.set_bank(draw(12, 3), torch.arange(12))
        if isinstance(part, Clusters):
            part.refresh(draw(30, 4, seed=5).float(), torch.arange(30), 30, epoch=0)
    return objective


@pytest.mark.parametrize("case", [*CASES, *RELATIONS])
def test_an_objective_stays_on_the_device(case: str) -> None:
    """Two steps with everything that a logged step computes, a backward pass each, and the memories afterwards."""

    def run(load: Callable[[Any], Any]) -> dict[str, Any]:
        objective, tracker, found = load(new_objective(case)), NonFiniteTracker(), {}
        for step in range(2):
            fields = load(draw_fields(batch=12, seed=20 * step))
            given = {name: fields[name].requires_grad_(name in LEARNT) for name in objective.needs}
            e = Embeddings(**given)
            loss = objective(e)
            tracker.note(step, {"z": e.z, **loss.log()})
            diagnosis = {**objective.diagnose(e), **embedding_statistics(e), **gradient_shares(loss, e.z)}
            loss.total.backward()
            gradients = {name: x.grad for name, x in given.items() if x.grad is not None}
            found[step] = loss.log(), gradients, diagnosis
            assert gradients
        return {"steps": found, "memories": dict(objective.named_buffers()), "first": list(tracker.first.values())}

    assert set(same_on_gpu(run)) == set(WAITS.get(case, {}))


@pytest.mark.parametrize("name", ["moco", "corinfomax", "pcl", "wmse", "dino", "nnclr", "tico"])
def test_memories_are_loaded_to_the_device(name: str) -> None:
    """A resumed run: the checkpoint is on the CPU, the objective on the GPU."""
    used = new_objective(name)
    used(Embeddings(**draw_fields(batch=12)))

    def run(load: Callable[[Any], Any]) -> Any:
        objective = load(parse(name).build(**SMALL.get(name, {})))
        objective.load_state_dict(used.state_dict())
        return dict(objective.named_buffers()), objective(Embeddings(**load(draw_fields(batch=12, seed=20)))).log()

    same_on_gpu(run)


def test_clusters_of_features_on_the_device_are_there_too() -> None:
    def run(load: Callable[[Any], Any]) -> Any:
        memory = Clusters((2, 3), temperature=0.2, warmup_epochs=0)
        memory.refresh(load(draw(20, 4).float()), load(torch.arange(20)), 25, epoch=0)
        return dict(memory.named_buffers())

    assert set(same_on_gpu(run)) == {"nn/memory.py:refresh"}, "scikit-learn clusters on the CPU, between epochs"


# --- networks


@pytest.mark.parametrize("case", [*METHODS, "simclr+adc at h"])
def test_a_network_stays_on_the_device(case: str) -> None:
    """Backbone, heads and EMA teacher: views to a loss, its gradient in every parameter, the teacher's update."""

    def run(load: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        method, objective = parse(CASES[case][0]), new_objective(case)
        heads = replace(method.heads, projector=(16, 4), predictor=(8,), local=(8, 8), prototypes=6, generator=(8,))
        backbone = Backbone("timm:test_resnet", channels=1, image_size=16)
        network = Network(backbone, heads, objective.needs, classes=3, prior=3, rows=torch.arange(9))
        network, objective, batch = load(network), load(objective), load(new_batch(8, 16))
        e = network(augment(batch, POLICIES["wmse"], 16, torch.Generator().manual_seed(1)))
        loss = objective(e)
        loss.total.backward()
        gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
        assert gradients
        if network.teacher is not None:
            network.update_teacher(0.5)
        return loss.log(), gradients, network.state_dict()

    assert same_on_gpu(run) == {}


# --- views


def new_batch(count: int, side: int, channels: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=generator)
    return Batch(images, torch.arange(count) % 3, torch.arange(count), draw(count, 3).float())


@pytest.mark.parametrize("colours", ["fused", "exact"])
@pytest.mark.parametrize(("policy", "channels"), [*((policy, 3) for policy in POLICIES), ("symmetric", 1)])
def test_views_stay_on_the_device(policy: str, channels: int, colours: Any) -> None:
    def run(load: Callable[[Any], Any]) -> Any:
        batch, generator = load(new_batch(10, 24, channels)), torch.Generator().manual_seed(1)
        views = augment(batch, POLICIES[policy], 24, generator, colours)
        assert views.clean is None
        return tuple(views)[:-1]

    assert same_on_gpu(run) == {}


@pytest.mark.parametrize("colours", ["fused", "exact"])
def test_large_views_are_made_on_the_device(colours: Any) -> None:
    """From 64 px on a CPU crops bytes image by image; a GPU does not, and so their views differ by the rounding."""
    batch, generator = new_batch(8, 80, 3), torch.Generator()
    expected = augment(batch, POLICIES["asymmetric224"], 64, generator.manual_seed(1), colours).x
    with FakeGpu() as gpu:
        found = augment(gpu.load(batch), POLICIES["asymmetric224"], 64, generator.manual_seed(1), colours).x
    assert gpu.waits == {}
    for view, other in zip(found, expected, strict=True):
        assert isinstance(view, GpuTensor)
        assert (view.inner - other).abs().mean() < 0.01
