"""Differences between devices: which GPU "cuda" is, memory that ran out, dtypes of sums."""

import gc
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from surestep.engine.host_memory import peak_resident, ran_out_on_host

WITHOUT_FLOAT64 = ("mps",)  # types of devices
_STAGE = "surestep_stage"
_DEVICE = (  # of MPS, of CUDA itself, and of its libraries for their workspace
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "_ALLOC_FAILED",  # CUBLAS_STATUS_ALLOC_FAILED, CUFFT_ALLOC_FAILED and others
)
_UNCHANGED: AbstractContextManager[Any] = nullcontext()


def use_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which "cuda" is this device, on the thread that enters it.

    torch uses the current device in many functions: FSDP puts the parameters there. It does not
    change for "cuda" without a number, or for a device of a different machine.
    """
    is_here = device.type == "cuda" and (device.index or 0) < torch.cuda.device_count()
    return torch.cuda.device(device) if is_here and device.index is not None else _UNCHANGED


def wait_for(device: torch.device) -> None:
    """Wait until a device has computed what it was given; the CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def ran_out(error: BaseException) -> bool:
    """Return whether memory ran out, on the device or on the host."""
    if isinstance(error, torch.OutOfMemoryError) or ran_out_on_host(error):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _DEVICE)


@contextmanager
def name_stage(stage: str) -> Iterator[None]:
    """Add to an error of memory that runs out in a block when it did, for `stage_of`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if ran_out(error):
            vars(error)[_STAGE] = stage
        raise


def stage_of(error: BaseException) -> str | None:
    """Return when memory ran out, if the error says so: "at the first batch"."""
    return vars(error).get(_STAGE)


def describe_memory(error: BaseException, device: torch.device) -> dict[str, Any]:
    """Return what is recorded of an error: its first line, and on CUDA what torch had."""
    found: dict[str, Any] = {"error": str(error).partition("\n")[0] or type(error).__name__}
    if device.type == "cuda":
        found["allocated"] = torch.cuda.memory_allocated(device)
        found["reserved"] = torch.cuda.memory_reserved(device)
    return found


def release_memory(device: torch.device) -> None:
    """Free what nothing refers to any more, also on the device."""
    gc.collect()  # it is off between the steps
    if device.type == "cuda":
        torch.cuda.empty_cache()


def clear_frames(error: BaseException | None) -> None:
    """Drop the tensors that the frames of an error, and of those before it, refer to."""
    cleared: list[BaseException] = []
    while error is not None and error not in cleared:  # they may form a circle
        cleared.append(error)
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of long sums: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def place(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; float32 instead of float64 if the device has none."""
    wide = tensor.dtype is torch.float64
    return tensor.to(device, sum_dtype(device)) if wide else tensor.to(device)


def as_summand(value: Any) -> torch.Tensor:
    """Return a number as a tensor of a type in which many can be added.

    In its own type, a sum may stop or wrap: at 256 in bf16, 2048 in fp16, 255 in uint8.
    """
    if not isinstance(value, torch.Tensor):
        return torch.as_tensor(value, dtype=torch.float64)
    return value.to(sum_dtype(value.device) if value.is_floating_point() else torch.int64)


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that torch had on a CUDA device, or this process on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident()
