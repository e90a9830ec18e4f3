"""What a Plan depends on of this machine."""

import math
import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import current_process
from typing import Literal

import torch

from surestep.base.torch_release import is_older
from surestep.engine.allocator import GLIBC, Allocator, machine_memory, read_allocator
from surestep.engine.distributed.launcher_env import (
    ALONE,
    BY_NPROC,
    AccelerateConfig,
    LaunchInfo,
    read_accelerate,
    read_launched,
)
from surestep.engine.host_memory import read_limits

EXTRAS = ("bitsandbytes", "deepspeed", "accelerate", "tensorboard", "mlflow", "wandb", "PIL")


@dataclass(frozen=True)
class SystemInfo:
    """The machine, as far as a Plan depends on it. Memory is in bytes.

    Attributes:
        cuda_ids: UUIDs of the GPUs, unique among all processes.
        has_own_gpu: this process sees one GPU, and every other process may see a different one.
        launched: the processes that were started together, and which of them this is.
        accelerate: the config of `accelerate launch`; None if it did not start this process.
        allocator: the memory allocator of this process on the host.
        mps: torch can compute on an Apple GPU.
        compiler: there is a C++ compiler, which torch.compile needs on a CPU.
        extras: installed packages that only some options need.
        memory: of the host or of the container, for all processes; infinity if that is not known.
        is_daemon: this process is a daemon of multiprocessing, which may start no processes.
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
    has_own_gpu: bool = False
    extras: tuple[str, ...] = ()
    compiler: bool = True
    launched: LaunchInfo = ALONE
    accelerate: AccelerateConfig | None = None
    mps: bool = False
    allocator: Allocator = GLIBC
    memory: float = math.inf
    is_daemon: bool = False

    def has_torch(self, release: str) -> bool:
        """Return whether torch is this release, such as "2.9", or newer; "" is every release."""
        return not is_older(self.torch_version, release)


def read_system() -> SystemInfo:
    """Read the machine; a CUDA context is created only if there is a CUDA device."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    launched = read_launched()
    # Ampere (8.0) is the first generation with TF32 and bf16 units; older ones emulate bf16.
    ampere = bool(properties) and all(gpu.major >= 8 for gpu in properties)
    return SystemInfo(
        torch_version=torch.__version__,
        cuda_devices=tuple(gpu.name for gpu in properties),
        cuda_memory=tuple(gpu.total_memory for gpu in properties),
        cuda_ids=tuple(str(gpu.uuid) for gpu in properties),
        has_own_gpu=count == 1 and _may_be_its_own(launched),
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
        memory=_read_memory(),
        is_daemon=current_process().daemon,
        compiler=any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))),
    )


def _read_memory() -> float:
    """Return the memory of the machine, or the limit of the container or job if that is less."""
    *_, container_limit = read_limits()
    return machine_memory() if container_limit is None else min(machine_memory(), container_limit)


def device_name(system: SystemInfo, device: torch.device) -> str:
    """Return what decides which kernels run: the GPU, or the instruction set of the CPU."""
    if device.type == "cuda":
        return system.cuda_devices[device.index or 0]
    return f"{device.type} ({torch.backends.cpu.get_cpu_capability()})"


def _may_be_its_own(launched: LaunchInfo) -> bool:
    """Return whether the visible GPU may belong to this process alone.

    `srun --gpus-per-task=1` does this, or CUDA_VISIBLE_DEVICES set in each process.
    """
    if launched.local_size == 1:
        return False
    visible = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    return launched.launcher in ("srun", "mpirun") or (
        launched.launcher != BY_NPROC and len(visible) == 1
    )


def _display() -> Literal["terminal", "notebook", "none"]:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and "IPKernelApp" in getattr(shell, "config", {}):
        return "notebook"
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else "none"
