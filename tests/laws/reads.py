"""Find where the host reads the device, on a machine whose only device is the host.

Two modes watch together. The dispatch mode sees the kernels that end in a read, in forward,
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
TORCH_AND_OURS = tuple(str(Path(each.__file__).parent) for each in (torch, surestep))
MASKS = (torch.bool, torch.uint8)


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
        if name in CALLS:
            self.found.append(f".{name}()")
        if name == "to":
            written_in = sys._getframe(1).f_code.co_filename
            if any(_names_cpu(each, written_in) for each in (*args[1:], *kwargs.values())):
                self.found.append(".to('cpu')")
        return func(*args, **kwargs)


def _by_mask(_: Tensor, indices: Any, value: Tensor | None = None, *more: Any) -> bool:
    """Say whether an index is a boolean mask; to fill with one number is no read."""
    masks = [each for each in indices if isinstance(each, Tensor) and each.dtype in MASKS]
    return bool(masks) and (value is None or value.numel() != 1)


def _names_cpu(device: Any, written_in: str) -> bool:
    """Say whether an argument of `.to()` is the CPU on purpose.

    In torch's code and ours a torch.device is the Plan's or another tensor's, and only here the
    CPU; that neither copies from a real device is asked on a GPU.
    """
    if isinstance(device, torch.device):
        return device.type == "cpu" and not written_in.startswith(TORCH_AND_OURS)
    return isinstance(device, str) and device == "cpu"


def _to_host(source: Tensor, device: Any) -> bool:
    return device is not None and source.device.type != "cpu" and torch.device(device).type == "cpu"


@contextmanager
def host_reads() -> Iterator[list[str]]:
    """Return a list that fills with the reads made inside."""
    found: list[str] = []
    with _Kernels(found), _Calls(found):
        yield found
