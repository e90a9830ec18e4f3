"""What this machine is, read once."""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch

from surestep.engine.allocator import GLIBC, Allocator, read_allocator
from surestep.engine.distributed.launcher_env import (
    ALONE,
    BY_NPROC,
    AccelerateConfig,
    LaunchInfo,
    read_accelerate,
    read_launched,
)

EXTRAS = ("bitsandbytes", "deepspeed", "accelerate")


@dataclass(frozen=True)
class SystemInfo:
    """The machine, as far as a Plan depends on it. Memory is in bytes.

    Attributes:
        cuda_ids: of the GPUs; no two in the world have the same, whatever a process calls them.
        one_gpu_each: one GPU is seen here, and others that were started may each see another.
        launched: where this process stands among those that were started with it.
        accelerate: what `accelerate launch` said; None where it started nothing.
        allocator: what gives this process its memory on the host.
        mps: whether torch can compute on an Apple GPU here.
        compiler: whether there is one for C++, which torch.compile needs on a CPU.
        extras: packages that are here and that only some options need.
    """

    torch_version: str
    cuda_devices: tuple[str, ...]
    cuda_memory: tuple[int, ...]
    bf16_native: bool
    tf32: bool
    cpus: int
    threads: int
    display: Literal["terminal", "notebook", "none"]
    cuda_ids: tuple[str, ...] = ()
    one_gpu_each: bool = False
    extras: tuple[str, ...] = ()
    compiler: bool = True
    launched: LaunchInfo = ALONE
    accelerate: AccelerateConfig | None = None
    mps: bool = False
    allocator: Allocator = GLIBC


def read_facts() -> SystemInfo:
    """Read the machine; the CUDA context is made only where there is a CUDA device."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    launched = read_launched()
    # Ampere (8.0) is the first generation with TF32 and bf16 units; older ones emulate bf16.
    ampere = bool(properties) and all(each.major >= 8 for each in properties)
    return SystemInfo(
        torch_version=torch.__version__,
        cuda_devices=tuple(each.name for each in properties),
        cuda_memory=tuple(each.total_memory for each in properties),
        cuda_ids=tuple(str(each.uuid) for each in properties),
        one_gpu_each=count == 1 and _may_be_its_own(launched),
        bf16_native=ampere,
        tf32=ampere,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        threads=torch.get_num_threads(),
        display=_display(),
        extras=tuple(name for name in EXTRAS if find_spec(name) is not None),
        launched=launched,
        accelerate=read_accelerate(),
        allocator=read_allocator(),
        mps=torch.backends.mps.is_available(),
        compiler=any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))),
    )


def device_name(facts: SystemInfo, device: torch.device) -> str:
    """Return what computes, as far as its kernels differ: the GPU, or the CPU's instructions."""
    if device.type == "cuda":
        return facts.cuda_devices[device.index or 0]
    return f"{device.type} ({torch.backends.cpu.get_cpu_capability()})"


def _may_be_its_own(launched: LaunchInfo) -> bool:
    """Say whether the one GPU that is seen may be this process's alone.

    As by `srun --gpus-per-task=1`, or where CUDA_VISIBLE_DEVICES is set for each process.
    """
    if launched.local_size == 1:
        return False
    visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    return launched.launcher in ("srun", "mpirun") or (
        launched.launcher != BY_NPROC and len(visible) == 1
    )


def _display() -> Literal["terminal", "notebook", "none"]:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and "IPKernelApp" in getattr(shell, "config", {}):
        return "notebook"
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else "none"
