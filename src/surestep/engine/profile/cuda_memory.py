"""The memory of a CUDA device: what this process and others have of it, and by which lines."""

import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from surestep.base.text import format_bytes
from surestep.base.user_code import is_user_file, shorten_path

EXPANDABLE = "expandable_segments:True"
_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the second name since torch 2.9
_QUERY = "--query-compute-apps=gpu_uuid,pid,used_memory,process_name"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_REQUESTED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_ALLOWED = re.compile(rf"{_SIZE} allowed")  # by set_per_process_memory_fraction
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_CONTEXT = 2**30  # more than CUDA's context of this process, which torch does not count
_LINES = 20


class GpuProcess(NamedTuple):
    """Another process that has memory of the device; the bytes are None if not known."""

    pid: int
    bytes: int | None
    name: str = ""


@dataclass(frozen=True)
class CudaMemory:
    """Bytes on a CUDA device when memory ran out.

    Attributes:
        requested: what was to be allocated; None is not known.
        allocated: in tensors of this process.
        reserved: by torch's allocator, for tensors of this process.
        peak: the most that was allocated.
        free: on the device, and allowed for this process.
        total: on the device.
        others: of other processes; with CUDA's own memory of this process if `is_exact` is False.
        processes: the others, as far as known.
        is_expandable: the allocator uses expandable segments.
    """

    requested: int | None
    allocated: int
    reserved: int
    peak: int
    free: int
    total: int
    others: int
    is_exact: bool
    processes: tuple[GpuProcess, ...]
    is_expandable: bool

    @property
    def limit(self) -> int:
        """The most that torch can reserve for this process."""
        return min(self.reserved + self.free, self.total)

    @property
    def is_fragmented(self) -> bool:
        """Whether the request would fit if the reserved memory were not fragmented."""
        missing = (self.requested or 0) - self.free
        return 0 < missing <= self.reserved - self.allocated

    @property
    def is_shared(self) -> bool:
        """Whether other processes have memory of the device."""
        return bool(self.processes) or self.others > (0 if self.is_exact else _CONTEXT)

    def describe(self) -> str:
        """Return sentences with what this process has, and what others have."""
        text = (
            f"Of the device's {format_bytes(self.total)}, torch has reserved "
            f"{format_bytes(self.reserved)} and allocated {format_bytes(self.allocated)}, and "
            f"{format_bytes(self.free)} are free."
        )
        if self.is_shared:
            text += f" Other processes use {format_bytes(self.others)} of this GPU"
            named = [f"pid {p.pid}{f', {p.name}' if p.name else ''}" for p in self.processes[:4]]
            text += f": {'; '.join(named)}." if named else "."
        if self.is_fragmented:
            text += (
                f" The {format_bytes(self.requested)} would fit into what is reserved and not "
                "allocated, but that is fragmented."
            )
        return text


def find_requested(text: str) -> int | None:
    """Return the bytes that could not be allocated, by the text of torch's error."""
    return _find_size(_REQUESTED, text)


def read_cuda_memory(device: torch.device, text: str) -> CudaMemory:
    """Read what has memory of a device after an error with this text."""
    free, total = torch.cuda.mem_get_info(device)
    reserved, allowed = torch.cuda.memory_reserved(device), _find_size(_ALLOWED, text)
    own, used = _find_size(_OWN, text), total - free
    others = max(0, used - (reserved if own is None else own))
    processes = [
        GpuProcess(int(pid), _to_bytes(size, unit)) for pid, size, unit in _OTHER.findall(text)
    ]
    if not processes and others > _CONTEXT:
        processes = _list_processes(str(torch.cuda.get_device_properties(device).uuid))
    return CudaMemory(
        requested=find_requested(text),
        allocated=torch.cuda.memory_allocated(device),
        reserved=reserved,
        peak=torch.cuda.max_memory_allocated(device),
        free=free if allowed is None else max(0, min(free, allowed - reserved)),
        total=total,
        others=others,
        is_exact=own is not None,
        processes=tuple(processes),
        is_expandable=any(EXPANDABLE in os.environ.get(name, "") for name in _SETTINGS),
    )


def list_allocating_lines(device: torch.device) -> list[dict[str, Any]]:
    """Return the user's lines whose blocks are the largest; [] if torch recorded no stacks.

    `torch.cuda.memory._record_memory_history()` turns the recording on.
    """
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    index = device.index if device.index is not None else torch.cuda.current_device()
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"] if segment.get("device", index) == index else ():
            if block["state"] == "active_allocated" and (line := _line_of(block)):
                sizes[line] += block["size"]
                counts[line] += 1
    return [
        {"line": line, "blocks": counts[line], "bytes": size}
        for line, size in sizes.most_common(_LINES)
    ]


def _line_of(block: dict[str, Any]) -> str | None:
    """Return the innermost line of the user that allocated a block, or the innermost of Python."""
    frames = [one for one in block.get("frames") or () if one["filename"].endswith(".py")]
    own = [one for one in frames if is_user_file(one["filename"])]
    first = next(iter(own or frames), None)
    return None if first is None else f"{shorten_path(first['filename'])}:{first['line']}"


def _list_processes(uuid: str) -> list[GpuProcess]:
    """Return the processes on a device by nvidia-smi; [] if it is not installed, or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=2,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        gpu, pid, size, name = (word.strip() for word in line.split(",", 3))
        if gpu.removeprefix("GPU-") == uuid.removeprefix("GPU-") and int(pid) != os.getpid():
            found.append(GpuProcess(int(pid), int(size) << 20 if size.isdecimal() else None, name))
    return found


def _find_size(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return None if match is None else _to_bytes(match[1], match[2])


def _to_bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
