"""A GPU for machines without one: its tensors compute on the CPU and say that they are on cuda:0.

Under a ``FakeGpu``, tensors on "cuda" have values, and devices have the consequences that they have on a GPU: an
operation that mixes them raises, and whatever makes the CPU wait for the GPU is recorded with the function of glf that
caused it.

torch's FakeTensorMode decides which operations may mix devices. It cannot do the rest: its tensors have no values, and
views and clusters depend on values; and without a CUDA driver they have no backward pass.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

GLF, LIGHTNING = (f"{Path(find_spec(name).origin).parent}/" for name in ("glf", "lightning"))
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
# The device that torch's own C++ code sees: one without kernels, whose backward pass runs in the thread that starts it.
INTERNAL = torch.device("lazy", 0)

aten = torch.ops.aten
COPIES = (aten._to_copy, aten.copy_)
INDEX, INDEX_PUT = (aten.index, aten._unsafe_index), (aten.index_put, aten.index_put_, aten._unsafe_index_put)
DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
T = TypeVar("T")
Waits = dict[str, list[str]]  # reasons, by place
READS, COPIES_BACK, COPIES_THERE = "reads values", "copies from the GPU", "copies to the GPU and waits"


class GpuTensor(Tensor):
    """A tensor of the fake GPU. ``inner`` has its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "GpuTensor":
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        with torch.inference_mode(inner.is_inference()):
            outer = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=INTERNAL, **layout)
        outer.inner = inner
        return outer

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __reduce_ex__(self, protocol: Any) -> Any:  # a checkpoint is loaded to the CPU
        return self.inner.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.detach().clone().requires_grad_(self.requires_grad)

    def __repr__(self, **options: Any) -> str:
        return f"GpuTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{function} was called outside of the fake GPU")


class FakeGpu(TorchDispatchMode):
    """Computes all operations. ``waits`` has the reasons for which the CPU waited, by function of glf."""

    _mode_key = torch._C._TorchDispatchModeKey.FAKE  # torch then accepts "cuda" without starting the driver

    def __init__(self) -> None:
        super().__init__()
        self.waits: Waits = {}
        self.recording = True
        self.lifting: list[bool] = []  # torch's setting at every entry

    def __enter__(self) -> "FakeGpu":
        torch._C._ensureCUDADeviceGuardSet()  # as FakeTensorMode does: "cuda" means cuda:0 without asking the driver
        self.lifting.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") is a copy of a tensor on the CPU
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self.lifting.pop())
        super().__exit__(*error)

    def load(self, value: Any) -> Any:
        """A module, or tensors in any structure, on the GPU. This is the test's own copy and is not recorded."""
        self.recording = False
        found = value.to(CUDA) if isinstance(value, nn.Module) else tree_map(_loaded, value)
        self.recording = True
        return found

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd"):
            with self:  # torch decomposes such operations itself, but not those on tensors of the inference mode
                return function.decompose(*args, **kwargs)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        outer = {id(x.inner): x for x in given if isinstance(x, GpuTensor)}
        device = kwargs.get("device")
        to_gpu = bool(outer) if device is None else device.type != "cpu"
        if outer or to_gpu:
            reason = _reason_to_wait(function, args, kwargs, to_gpu)
            if reason and self.recording:
                self.waits.setdefault(_place(), []).append(reason)
        found = function(*tree_map(_inside, args), **tree_map(_inside, kwargs))

        def outside(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            return outer[id(x)] if id(x) in outer else GpuTensor(x) if to_gpu else x

        return tree_map(outside, found)


def _reason_to_wait(function: Any, args: Any, kwargs: Any, to_gpu: bool) -> str | None:
    """Why this operation makes the CPU wait for the GPU. Raises if it may not mix its devices."""
    packet = function.overloadpacket
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    on_gpu = [isinstance(x, GpuTensor) for x in given]
    if packet in COPIES:
        source = args[1] if packet is aten.copy_ else args[0]
        target_on_gpu = isinstance(args[0], GpuTensor) if packet is aten.copy_ else to_gpu
        if isinstance(source, GpuTensor) == target_on_gpu:
            return None
        blocking = not (kwargs.get("non_blocking") or args[2:] == (True,))
        return COPIES_BACK if not target_on_gpu else COPIES_THERE if blocking else None
    if any(on_gpu) and not all(on_gpu):
        _refuse_mixture(function, args, kwargs)
        if any(x.ndim for x, gpu in zip(given, on_gpu, strict=True) if not gpu):
            return COPIES_THERE  # an index on the CPU
    if packet in INDEX + INDEX_PUT:
        indices = [x for x in args[1] if x is not None]
        filled = packet in INDEX_PUT and len(indices) == 1 and args[2].numel() == 1  # torch calls masked_fill_
        return READS if any(x.dtype == torch.bool for x in indices) and not filled else None
    waits = DATA_DEPENDENT & set(function.tags) or packet is aten._linalg_check_errors
    return READS if any(on_gpu) and waits else None


def _refuse_mixture(function: Any, args: Any, kwargs: Any) -> None:
    """Raise torch's error if the operation needs all tensors on one device."""
    if function.overloadpacket in (aten.cat, aten.stack):  # FakeTensorMode would let numbers pass, a GPU does not
        raise RuntimeError(f"{function} of tensors on different devices")

    def without_values(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=CUDA if isinstance(x, GpuTensor) else CPU)

    with FakeTensorMode(), suppress(DynamicOutputShapeException):
        function(*tree_map(without_values, args), **tree_map(without_values, kwargs))


def _inside(x: Any) -> Any:
    """An argument as the CPU's kernel takes it."""
    if isinstance(x, torch.device):
        return CPU
    return x.inner if isinstance(x, GpuTensor) else x


def _loaded(x: Any) -> Any:
    if not isinstance(x, Tensor) or isinstance(x, GpuTensor):
        return x
    return GpuTensor(x.detach().clone()).requires_grad_(x.requires_grad)


def _place() -> str:
    """The function of glf that is running, as ``file:function``; "lightning" for code that glf does not call itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(GLF) and not name.startswith("<"):  # a comprehension belongs to its function
            return f"{file.removeprefix(GLF)}:{name}"
        if file.startswith(LIGHTNING):
            return "lightning"
        frame = frame.f_back
    return "torch"  # such as a backward pass


def same_on_gpu(run: Callable[[Callable[[T], T]], Any]) -> Waits:
    """Check that a computation has the same results on the GPU, and all of them there; return why it waited, and where.

    ``run`` is called with a function that loads modules and tensors to the device, and returns its results.
    """
    expected, _ = tree_flatten_with_path(run(lambda value: value))
    with FakeGpu() as gpu:
        found, _ = tree_flatten_with_path(run(gpu.load))
    assert [path for path, _ in found] == [path for path, _ in expected]
    for (path, value), (_, other) in zip(found, expected, strict=True):
        if isinstance(value, Tensor):
            assert isinstance(value, GpuTensor), f"{keystr(path)} is on the CPU"
            torch.testing.assert_close(value.inner, other, equal_nan=True, msg=lambda m, at=path: f"{keystr(at)}: {m}")
        else:
            assert value == pytest.approx(other, rel=1e-6), keystr(path)
    return gpu.waits
