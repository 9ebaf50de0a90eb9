"""A backbone as an ONNX graph for any batch size, including the normalisation."""

import json
import logging
import warnings

import torch
from torch import Tensor, nn

from glf.exporting.preprocess import Preprocess
from glf.nn.backbone import Backbone


class Normalised(nn.Module):
    """Normalisation and body, without the parts of ``Backbone`` that cannot be traced."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.body = backbone.body
        self.register_buffer("mean", backbone.mean)
        self.register_buffer("std", backbone.std)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.body((images - self.mean) / self.std)
        return out


def graph_bytes(backbone: Backbone, preprocess: Preprocess) -> bytes:
    """The content of the .onnx file, with the preprocessing in its metadata."""
    import onnx

    model = Normalised(backbone).eval()
    blank = torch.zeros(2, backbone.channels, backbone.image_size, backbone.image_size)
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter warns about its own internals
            program = torch.onnx.export(
                model,
                (blank,),
                dynamo=True,
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        why = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{backbone.name} cannot be traced to a graph ({type(error).__name__}: {why}): use --format safetensors"
        ) from error
    assert program is not None
    proto = program.model_proto
    notes = preprocess.metadata() | {"normalisation": "inside the graph: give values from 0 to 1"}
    onnx.helper.set_model_props(proto, {k: v if isinstance(v, str) else json.dumps(v) for k, v in notes.items()})
    content: bytes = proto.SerializeToString()
    return content
