"""What differs between devices: which GPU "cuda" is, memory that ran out, numbers for sums."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_AS_IT_IS: AbstractContextManager[Any] = nullcontext()


def use_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which "cuda" is this device, on the thread that enters it.

    torch asks for the current device in many places: FSDP puts the parameters there. Of "cuda"
    without a number it stays as it is; so it does where a plan is of another machine's GPUs.
    """
    is_here = device.type == "cuda" and (device.index or 0) < torch.cuda.device_count()
    return torch.cuda.device(device) if is_here and device.index is not None else _AS_IT_IS


def ran_out(error: BaseException) -> bool:
    """Say whether an error means that memory ran out, on the device or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return what a long sum is added up in: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
