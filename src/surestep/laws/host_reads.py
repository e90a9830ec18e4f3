"""Find where the host reads the device, on a machine without an accelerator.

Two modes record together. The dispatch mode sees the kernels that end in a read, in forward,
backward and step: `_local_scalar_dense` (`.item()`, `float(t)`, `if t:`), `nonzero` and its kin,
and copies to the CPU. It does not see the nonzero inside a boolean-mask index, so an index by a
boolean is a read by itself. On a CPU `.cpu()`, `.numpy()` and `.tolist()` reach no kernel at all;
the function mode sees them called.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from surestep.base.version import __file__ as _OURS
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.model.compile import DispatchMode

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
_TORCH = str(Path(sys.modules["torch"].__file__ or "").parent)
_SURESTEP = str(Path(_OURS).parents[1])
TORCH_AND_OURS = (_TORCH, _SURESTEP)
MASKS = (torch.bool, torch.uint8)
# It counts targets of the dataset before they are moved, and checks that they are on the host.
COUNTS_ON_HOST = BatchLoader.micro_batch.__code__


class _Kernels(DispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, note: Callable[[str], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in KERNELS:
            self.note(name)
        if name in INDEXING and _by_mask(*args):
            self.note(f"{name} by a boolean mask")
        if name == "_to_copy" and _to_host(args[0], kwargs.get("device")):
            self.note("copy to the host")
        if name == "copy_" and _to_host(args[1], args[0].device):
            self.note("copy to the host")
        return func(*args, **kwargs)


class _Calls(TorchFunctionMode):
    def __init__(self, note: Callable[[str], object]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1).f_code
        if name in CALLS and (name != "numpy" or caller is not COUNTS_ON_HOST):
            self.note(f".{name}()")
        given = (*args[1:], *kwargs.values())
        if name == "to" and any(_names_cpu(value, caller.co_filename) for value in given):
            self.note(".to('cpu')")
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
    with watch_reads(found.append):
        yield found


@contextmanager
def watch_reads(note: Callable[[str], object]) -> Iterator[None]:
    """Call a function with what reads the device, at each read in the block."""
    with _Kernels(note), _Calls(note):
        yield


def find_reader() -> str:
    """Return "file:line" of the code that reads the device now; "" if it is that of surestep.

    The function that `watch_reads` calls at a read calls it. Frames of torch are passed over.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(_TORCH)
    ):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_SURESTEP):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
