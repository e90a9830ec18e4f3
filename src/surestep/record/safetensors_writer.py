"""Write safetensors files with their hash; the library reads them.

The library returns no hash. The manifest needs the hash of what was in memory, not of what the disk
returns, and a full disk must be an OSError with its number.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.shards import TensorMeta

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# torch's name of each dtype of safetensors, as text: most commands start without torch.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
NAMES = {f"torch.{dtype}": name for name, dtype in DTYPES.items()}


class FileDigest(NamedTuple):
    """Size and hash of a file."""

    bytes: int
    sha256: str


class TensorFile(NamedTuple):
    """Host memory in the layout of a file: tensors are views of it, parts the header and it."""

    tensors: Mapping[str, Tensor]
    parts: tuple[Any, Any]


def allocate_file(tensors: Mapping[str, Tensor]) -> TensorFile:
    """Return host memory for tensors like these, in one block as their file has it."""
    import torch

    described = {name: TensorMeta(tuple(t.shape), t.dtype) for name, t in tensors.items()}
    header, ordered = _header(described, None)
    size = sum(tensor.nbytes for tensor in tensors.values())
    pinned = any(tensor.device.type == "cuda" for tensor in tensors.values())
    memory, end = torch.empty(size, dtype=torch.uint8, pin_memory=pinned), 0
    views: dict[str, Tensor] = {}
    for name in ordered:
        begin, end = end, end + tensors[name].nbytes
        views[name] = memory[begin:end].view(tensors[name].dtype).view(tensors[name].shape)
    return TensorFile({name: views[name] for name in tensors}, (header, memory.numpy()))


def _header(
    tensors: Mapping[str, TensorMeta], about: Mapping[str, str] | None
) -> tuple[bytes, list[str]]:
    """Return the header of a file, and the order of the tensors after it."""
    # Wide dtypes first, as the library does: then each tensor is aligned.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    end = 0
    for name, (shape, dtype) in ordered:
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        named = safetensors_dtype(name, dtype)
        header[name] = {"dtype": named, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [name for name, _ in ordered]


def stream_tensors(
    file: IO[bytes],
    tensors: Mapping[str, TensorMeta],
    read: Callable[[str], Tensor],
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file with one tensor at a time in memory.

    `read` returns the tensor of a name on the host; `about` is text for the header.
    """
    import torch

    header, ordered = _header(tensors, about)
    file.write(header)
    for name in ordered:
        if math.prod(tensors[name].shape):
            plain: Any = read(name).contiguous().reshape(-1).view(torch.uint8).numpy()
            file.write(plain)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileDigest:
    """Write tensors as a new safetensors file; return the size and hash that it had in memory."""
    made = allocate_file(tensors)
    for name, view in made.tensors.items():
        view.copy_(tensors[name])
    with open(path, "xb", buffering=0) as file:
        return write_into(file.fileno(), made.parts)


def write_into(descriptor: int, parts: Iterable[Any]) -> FileDigest:
    """Write a few buffers into an open file; return the size and hash that they had in memory."""
    left, sha256 = [memoryview(part) for part in parts], hashlib.sha256()
    for part in left:
        sha256.update(part)
    size = sum(part.nbytes for part in left)
    while left:
        done = os.writev(descriptor, left)
        while left and done >= left[0].nbytes:
            done -= left.pop(0).nbytes
        if done:
            left[0] = left[0][done:]
    return FileDigest(size, sha256.hexdigest())


def safetensors_dtype(name: str, dtype: torch.dtype) -> str:
    """Return safetensors' name of a tensor's dtype."""
    if str(dtype) not in NAMES:
        raise CheckpointError(
            f"{name} is a tensor of {dtype}, which a checkpoint cannot hold. Convert it, such as "
            "by .float(); or hold its bits in the buffer, as .view(torch.uint8), and view them as "
            f"{dtype} in forward. Known: {', '.join(NAMES)}."
        )
    return NAMES[str(dtype)]


def dtype_of(name: str) -> torch.dtype:
    """Return torch's dtype for a name of safetensors."""
    import torch

    dtype: torch.dtype = getattr(torch, DTYPES[name])
    return dtype
