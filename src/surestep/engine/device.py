"""Which GPU is meant where a program says no more than "cuda"."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_AS_IT_IS: AbstractContextManager[Any] = nullcontext()


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which "cuda" is this device, on the thread that enters it.

    torch asks for the current device in many places: FSDP puts the parameters there. Of "cuda"
    without a number it stays as it is; so it does where a plan is of another machine's GPUs.
    """
    is_here = device.type == "cuda" and (device.index or 0) < torch.cuda.device_count()
    return torch.cuda.device(device) if is_here and device.index is not None else _AS_IT_IS
