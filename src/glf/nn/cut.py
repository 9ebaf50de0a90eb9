"""Cut a model into a trunk, which is frozen, and a tail, which is trained.

A model is cut before one of its stages. The stages are found from the model's own structure: from the model downwards,
the child with the most parameters is followed until it has at least two siblings of its class; it and they are the
stages. These are ``layer1`` to ``layer4`` of a ResNet, the seven ``blocks`` of an EfficientNet, the blocks of a ViT.

``torch.fx`` records how the model's forward function connects its stages, without looking into them, and this graph is
split in two. Both halves share their layers with the model: training the tail trains the model.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from glf.nn.backbone import Backbone, normalised

SIBLINGS = 3  # modules of one class in a row that count as stages
MANY_STAGES, LONG_TAIL = 8, 2  # by default the last two of eight stages or more are trained, else the last one
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


class Halves(NamedTuple):
    """The two halves of a backbone: ``tail(trunk(images)) == backbone(images)``."""

    trunk: "Trunk"
    tail: "Tail"
    stages: tuple[str, ...]  # names of the stages in the tail
    of: int  # number of all stages


class Trunk(nn.Module):
    """Normalisation and the first stages of a backbone: from images in [0, 1] to activations."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, graph: fx.GraphModule) -> None:
        super().__init__()
        self.body, self.channels = graph, backbone.channels
        self.register_buffer("mean", backbone.mean, persistent=False)
        self.register_buffer("std", backbone.std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(normalised(x, self.mean, self.std))
        return out


class Tail(nn.Module):
    """The last stages of a backbone and everything after them: from activations to features."""

    def __init__(self, body: fx.GraphModule, width: int) -> None:
        super().__init__()
        self.body, self.width = body, width

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def find_stages(body: nn.Module) -> list[str]:
    """Names of the model's stages in the order in which they run; ValueError if it has no such structure."""
    path, module = "", body
    while True:
        children = {name: (child, _size(child)) for name, child in module.named_children() if _size(child)}
        if not children:
            raise ValueError("no three of its layers in a row are of one class")
        heaviest = max(children, key=lambda name: children[name][1])
        kind = type(children[heaviest][0])
        siblings = [name for name, (child, _) in children.items() if type(child) is kind]
        if len(siblings) >= SIBLINGS:
            return [path + name for name in siblings]
        path, module = f"{path}{heaviest}.", children[heaviest][0]


def default_tail(stages: int) -> int:
    """Number of stages that are trained by default.

    >>> default_tail(4), default_tail(7), default_tail(12)
    (1, 1, 2)
    """
    return LONG_TAIL if stages >= MANY_STAGES else 1


@torch.no_grad()
def cut(backbone: Backbone, tail: int | None = None) -> Halves:
    """Cut a backbone before its last ``tail`` stages; ValueError if it cannot be cut there."""
    try:
        stages = find_stages(backbone.body)
        tail = default_tail(len(stages)) if tail is None else tail
        if not 1 <= tail < len(stages):
            raise ValueError(f"it has {len(stages)} stages, of which at least one stays frozen: --tail {tail}")
        trunk, rest = _split(backbone.body, stages, stages[-tail])
        halves = Halves(Trunk(backbone, trunk), Tail(rest, backbone.width), tuple(stages[-tail:]), len(stages))
        _check(backbone, halves)
    except (ValueError, TypeError, RuntimeError, AttributeError, AssertionError, fx.proxy.TraceError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"{backbone.name} cannot be cut into a trunk and a tail ({why}): use --train all or --train norms"
        ) from error
    return halves


def norm_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The scales and shifts of all normalisation layers."""
    layers = [layer for layer in model.modules() if isinstance(layer, NORMS) or "Norm" in type(layer).__name__]
    return list(dict.fromkeys(p for layer in layers for p in layer.parameters(recurse=False)))


class _StageTracer(fx.Tracer):
    """Records calls of stages and of modules beside them as they are; only modules around stages are traced."""

    def __init__(self, stages: list[str]) -> None:
        super().__init__()
        self.stages = stages

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(stage.startswith(f"{module_qualified_name}.") for stage in self.stages)


def _split(body: nn.Module, stages: list[str], first: str) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The graph up to the input of the stage ``first``, and the graph from there on."""
    training = body.training
    body.eval()  # a functional dropout is recorded as it is then: off
    graph = _StageTracer(stages).trace(body)
    body.train(training)
    stage = next((node for node in graph.nodes if node.op == "call_module" and node.target == first), None)
    if stage is None or not stage.args or not isinstance(stage.args[0], fx.Node):
        raise ValueError(f"its forward function does not call {first}")
    boundary = stage.args[0]
    end = next(node for node in graph.nodes if node.op == "output")
    start = next(node for node in graph.nodes if node.op == "placeholder")
    after = _needed(end, boundary)
    if start in after:
        raise ValueError(f"layers after {first} also read the output of layers before it")
    before = _needed(boundary, None)
    trunk, rest = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in before:
            copies[node] = trunk.node_copy(node, lambda old: copies[old])
    trunk.output(copies[boundary])
    others: dict[fx.Node, fx.Node] = {boundary: rest.placeholder("activations")}
    for node in graph.nodes:
        if node in after and node is not boundary:
            others[node] = rest.node_copy(node, lambda old: others[old])
    return fx.GraphModule(body, trunk), fx.GraphModule(body, rest)


def _needed(end: fx.Node, boundary: fx.Node | None) -> set[fx.Node]:
    """The nodes that ``end`` depends on, itself included; what lies behind ``boundary`` is not followed."""
    found, waiting = set[fx.Node](), [end]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [] if node is boundary else node.all_input_nodes
    return found


def _check(backbone: Backbone, halves: Halves) -> None:
    """Both halves, one after the other, must give the features of the whole, for another batch size than traced."""
    training = backbone.training
    side = backbone.image_size
    x = torch.rand(2, backbone.channels, side, side, generator=torch.Generator().manual_seed(0))
    x = x.to(backbone.mean.device)
    backbone.eval(), halves.trunk.eval(), halves.tail.eval()
    activations: Any = halves.trunk.body(backbone.normalised(x))  # not yet known to be a tensor
    if not isinstance(activations, Tensor) or len(activations) != len(x):
        raise ValueError("what its stages pass on is no single tensor")
    if not torch.allclose(halves.tail(activations), backbone(x), rtol=1e-4, atol=1e-5):
        raise ValueError("its two halves do not give the features of the whole")
    backbone.train(training)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
