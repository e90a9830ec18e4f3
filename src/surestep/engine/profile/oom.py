"""What is in memory, counted when there is none left."""

import gc
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from surestep.engine.batch import flatten_tensors, tensor_bytes
from surestep.engine.device import peak_memory
from surestep.engine.state.state import State

LARGEST = 20


def memory_snapshot(state: State, device: torch.device) -> dict[str, Any]:
    """Return the bytes in memory: by kind, and the largest other tensors by shape.

    What autograd alone saves for the backward is not a Python object: it is in `allocated` (of the
    device's allocator; of the host the most that the process ever had) and in no kind. On
    CUDA, `segments` is torch.cuda.memory_snapshot().
    """
    parameters = list(state.model.parameters())
    kinds: dict[str, list[Tensor]] = {
        "weights": [parameter.detach() for parameter in parameters],
        "buffers": list(state.model.buffers()),
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer": [
            tensor
            for optimizer in state.optimizers.values()
            for tensor in flatten_tensors(list(optimizer.state.values()))
        ],
        "average": list(state.average.stored.values()) if state.average is not None else [],
    }
    known = {tensor.data_ptr() for tensors in kinds.values() for tensor in tensors}
    found: dict[str, Any] = {kind: tensor_bytes(tensors) for kind, tensors in kinds.items()}
    found["allocated"] = peak_memory(device)
    if device.type == "cuda":
        found["segments"] = torch.cuda.memory_snapshot()
    found["others"] = _largest(known, device)
    return found


def _largest(known: set[int], device: torch.device) -> list[dict[str, Any]]:
    """Return the tensors that are none of the known ones, added up by shape and type."""
    counts: Counter[tuple[tuple[int, ...], str]] = Counter()
    sizes: Counter[tuple[tuple[int, ...], str]] = Counter()
    visited = set(known)
    for tensor in gc.get_objects():
        if type(tensor) is not Tensor or tensor.layout is not torch.strided:
            continue
        if tensor.device.type == device.type and tensor.data_ptr() not in visited:
            visited.add(tensor.data_ptr())
            key = (tuple(tensor.shape), str(tensor.dtype))
            counts[key] += 1
            sizes[key] += tensor_bytes([tensor])
    return [
        {"shape": list(shape), "dtype": dtype, "tensors": counts[shape, dtype], "bytes": size}
        for (shape, dtype), size in sizes.most_common(LARGEST)
    ]
