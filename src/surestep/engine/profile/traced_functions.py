"""Functions that a trace replaces: what computes attention, and what CUDA computes differently.

A step of a CUDA device that is not here is traced on the CPU, with CUDA's way to drop values and to
choose the dtype under autocast.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from surestep.engine.batch import map_tensors
from surestep.engine.losses.base import HALF
from surestep.engine.model.compile import DispatchMode

_SDPA = "scaled_dot_product_"
# CUDA's autocast computes them in fp32, and the CPU's does not.
# Source: https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
_IN_FP32 = {
    *(functional.layer_norm, functional.group_norm, functional.softplus),
    *(functional.softmax, torch.softmax, Tensor.softmax),
    *(functional.log_softmax, torch.log_softmax, Tensor.log_softmax),
    *(torch.exp, Tensor.exp, torch.log, Tensor.log, torch.pow, Tensor.pow, Tensor.__pow__),
    *(torch.cumsum, Tensor.cumsum, torch.norm, Tensor.norm),
}


class AttentionRecorder(TorchFunctionMode):
    """Records what computes attention: a kernel, or "math" if plain products do.

    Attributes:
        kernels: in the order of the calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        recorder = _KernelRecorder()
        with recorder:
            result = func(*args, **(kwargs or {}))
        self.kernels += recorder.kernels or ["math"]
        return result


class _KernelRecorder(DispatchMode):
    """Records the names of attention kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.").split(".")[0].lstrip("_")
        if name.startswith(_SDPA):
            self.kernels.append(name.removeprefix(_SDPA))
        return func(*args, **(kwargs or {}))


class CudaFunctions(TorchFunctionMode):
    """Computes on a CPU what takes as much memory as on CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = map_tensors((args, kwargs), _widen)
        elif func is functional.scaled_dot_product_attention:
            # CUDA's kernels drop values by a seed; the CPU's cannot, and would store all products.
            query, key, value, *rest = args
            args = (query, key, value, *rest[:1], *(0.0 for _ in rest[1:2]), *rest[2:])
            kwargs = {name: 0.0 if name == "dropout_p" else x for name, x in kwargs.items()}
        elif func is functional.dropout:
            return _drop(*args, **kwargs)
        return func(*args, **kwargs)


def _drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop values by a mask of one byte for each, where the CPU has a factor."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor
