"""The slot of a worker on its machine: its number, and the share of the cores and GPUs."""

import os
import shlex
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from surestep.base.errors import RunError
from surestep.record.lock import RunLock, is_locked

_FOLDER = "workers"
_MOST = 1024  # workers of one study on one machine


@dataclass(frozen=True)
class Slot:
    """The number of a live worker among those of one study on one machine; a context manager.

    Attributes:
        number: from 0; no other live worker has it.
    """

    number: int
    _folder: Path
    _lock: RunLock

    @classmethod
    def take(cls, study: Path) -> "Slot":
        """Take the lowest free number.

        Raises:
            RunError: the folder of the study cannot be written.
        """
        folder = study / _FOLDER
        for number in range(_MOST):
            own = folder / f"{socket.gethostname()}-{number}"
            try:
                own.mkdir(parents=True, exist_ok=True)
                return cls(number, folder, RunLock(own))
            except RunError:  # another worker has it
                continue
            except OSError as error:
                raise RunError(
                    f"{own} cannot be written: {error.strerror}. Free some space, or choose a "
                    "folder that can be written with --study."
                ) from error
        raise RunError(f"{study} has {_MOST} workers on this machine already.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def count_workers(self) -> int:
        """Return the number of live workers of the study on this machine, with this one."""
        with suppress(OSError):
            mine = f"{socket.gethostname()}-"
            return sum(is_locked(path) for path in self._folder.glob(f"{mine}*"))
        return 1


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_threads(workers: int, nproc: int) -> int:
    """Return how many threads each training process has if the cores are shared evenly."""
    return max(1, count_cores() // (workers * nproc))


def list_gpus(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the visible NVIDIA GPUs; nvidia-smi lists them, since to import torch takes longer."""
    env = os.environ if environment is None else environment
    if "CUDA_VISIBLE_DEVICES" in env:
        return [name.strip() for name in env["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    try:
        found = subprocess.run(
            shlex.split("nvidia-smi --query-gpu=index --format=csv,noheader"),
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return found.stdout.split() if found.returncode == 0 else []


def share_gpus(gpus: list[str], slot: int, nproc: int) -> dict[str, str]:
    """Return what gives a worker its GPUs, as variables of the environment of its trials.

    Each worker has `nproc` of its own while there are enough; after that, workers share them.
    """
    if len(gpus) <= nproc:
        return {}
    first = slot * nproc % (len(gpus) // nproc * nproc)
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[first : first + nproc])}
