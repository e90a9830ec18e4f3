"""Find where the host reads the device, on a machine without an accelerator.

Two modes record together. The dispatch mode sees the kernels that end in a read, in forward,
backward and step: `_local_scalar_dense` (`.item()`, `float(t)`, `if t:`), `nonzero` and its kin,
and copies to the CPU. It does not see the nonzero inside a boolean-mask index, so an index by a
boolean is a read by itself. On a CPU `.cpu()`, `.numpy()` and `.tolist()` reach no kernel at all;
the function mode sees them called.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import surestep
from surestep.engine.data.batch_loader import BatchLoader

KERNELS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "allclose",
    "is_nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
    "bincount",
    "_linalg_check_errors",
}
CALLS = {"cpu", "numpy", "tolist", "__array__"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
TORCH_AND_OURS = tuple(str(Path(package.__file__).parent) for package in (torch, surestep))
MASKS = (torch.bool, torch.uint8)
# It counts targets of the dataset before they are moved, and checks that they are on the host.
COUNTS_ON_HOST = BatchLoader.micro_batch.__code__


class _Kernels(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in KERNELS:
            self.found.append(name)
        if name in INDEXING and _by_mask(*args):
            self.found.append(f"{name} by a boolean mask")
        if name == "_to_copy" and _to_host(args[0], kwargs.get("device")):
            self.found.append("copy to the host")
        if name == "copy_" and _to_host(args[1], args[0].device):
            self.found.append("copy to the host")
        return func(*args, **kwargs)


class _Calls(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1).f_code
        if name in CALLS and (name != "numpy" or caller is not COUNTS_ON_HOST):
            self.found.append(f".{name}()")
        given = (*args[1:], *kwargs.values())
        if name == "to" and any(_names_cpu(value, caller.co_filename) for value in given):
            self.found.append(".to('cpu')")
        return func(*args, **kwargs)


def _by_mask(_: Tensor, indices: Any, value: Tensor | None = None, *more: Any) -> bool:
    """Return whether an index is a boolean mask; filling with one number is not a read."""
    masks = [index for index in indices if isinstance(index, Tensor) and index.dtype in MASKS]
    return bool(masks) and (value is None or value.numel() != 1)


def _names_cpu(device: Any, written_in: str) -> bool:
    """Return whether an argument of `.to()` names the CPU.

    In torch's code and ours a torch.device comes from the Plan or a tensor and is the CPU only
    here; tests on a GPU check that neither copies from the device.
    """
    if isinstance(device, torch.device):
        return device.type == "cpu" and not written_in.startswith(TORCH_AND_OURS)
    return isinstance(device, str) and device == "cpu"


def _to_host(source: Tensor, device: Any) -> bool:
    return device is not None and source.device.type != "cpu" and torch.device(device).type == "cpu"


@contextmanager
def host_reads() -> Iterator[list[str]]:
    """Yield a list to which each read inside is appended."""
    found: list[str] = []
    with _Kernels(found), _Calls(found):
        yield found
