"""Files of tensors: written as safetensors with their hash; read by the library.

The library gives no hash. Written here, each tensor passes to the file and to the hash, so that the
manifest tells what was in memory and not what came to lie on the disk, and a full disk is an
OSError with its number.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.shards import TensorMeta

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# What torch calls each type of safetensors: text, since commands that only look at checkpoints
# start without torch.
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
_ALIGNED = 8  # bytes: where the first tensor may begin
_AT_ONCE = 512  # parts of a file that one call writes; Linux and macOS take 1024


class FileDigest(NamedTuple):
    """What a file of a checkpoint must be, to be read."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class TensorFileLayout:
    """Tensors as they lie in a file; its parts are the memory of the tensors themselves.

    Attributes:
        tensors: by name; on the host and contiguous.
        parts: the header, and the bytes of the tensors, each alone or all together.
    """

    tensors: Mapping[str, Tensor]
    parts: Sequence[Any]


def make_layout(
    tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> TensorFileLayout:
    """Return how tensors lie in a file, and what its header says.

    Args:
        tensors: by name; on the host and contiguous.
        about: what the header tells besides.

    Raises:
        CheckpointError: safetensors has no name for a tensor's type.
    """
    described = {name: TensorMeta(tuple(t.shape), t.dtype) for name, t in tensors.items()}
    header, ordered = _header(described, about)
    plain = [_bytes(tensors[name]) for name in ordered if tensors[name].numel()]
    return TensorFileLayout(tensors, [header, *plain])


def allocate_buffer(tensors: Mapping[str, Tensor]) -> TensorFileLayout:
    """Return memory of the host for tensors like these, in one piece as their file has it.

    So a save hands two pieces over, however many tensors there are.

    Raises:
        CheckpointError: safetensors has no name for a tensor's type.
    """
    import torch

    described = {name: TensorMeta(tuple(t.shape), t.dtype) for name, t in tensors.items()}
    header, ordered = _header(described, None)
    size = sum(each.nbytes for each in tensors.values())
    pinned = any(each.device.type == "cuda" for each in tensors.values())
    memory, end = torch.empty(size, dtype=torch.uint8, pin_memory=pinned), 0
    lies: dict[str, Tensor] = {}
    for name in ordered:
        begin, end = end, end + tensors[name].nbytes
        lies[name] = memory[begin:end].view(tensors[name].dtype).view(tensors[name].shape)
    return TensorFileLayout({name: lies[name] for name in tensors}, [header, memory.numpy()])


def _header(
    tensors: Mapping[str, TensorMeta], about: Mapping[str, str] | None
) -> tuple[bytes, list[str]]:
    """Return the header of a file, and in which order the tensors follow it."""
    # Wide types first, as the library does: then each tensor lies at a multiple of its width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    end = 0
    for name, (shape, dtype) in ordered:
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        named = safetensors_dtype(name, dtype)
        header[name] = {"dtype": named, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text, [name for name, _ in ordered]


def _bytes(tensor: Tensor) -> Any:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def stream_tensors(
    path: Path,
    tensors: Mapping[str, TensorMeta],
    read: Callable[[str], Tensor],
    about: Mapping[str, str] | None = None,
) -> None:
    """Write tensors as a safetensors file, of which one at a time is in memory.

    Args:
        path: of the file, which is not there yet.
        tensors: what they are, by name.
        read: returns the tensor of a name, on the host.
        about: what the header tells besides.

    Raises:
        OSError: the disk is full or cannot be written.
        CheckpointError: safetensors has no name for a tensor's type.
    """
    header, ordered = _header(tensors, about)
    with open(path, "xb", buffering=0) as file:
        _write(file.fileno(), [memoryview(header)])
        for name in ordered:
            if math.prod(tensors[name].shape):
                _write(file.fileno(), [memoryview(_bytes(read(name)))])


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> FileDigest:
    """Write tensors as a safetensors file; return its size and hash as they were in memory.

    Raises:
        OSError: the disk is full or cannot be written.
        CheckpointError: safetensors has no name for a tensor's type.
    """
    return write_parts(path, make_layout(tensors, about).parts)


def write_text(path: Path, text: str) -> FileDigest:
    """Write text; return its size and hash."""
    return write_parts(path, [text.encode()])


def write_parts(path: Path, parts: Sequence[Any]) -> FileDigest:
    """Write what lies in pieces of memory as one file; return its size and hash.

    There is no buffer: a process that is forked meanwhile would write what is left in one again.

    Args:
        path: of the file, which is not there yet.
        parts: each with the buffer of its bytes.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    with open(path, "xb", buffering=0) as file:
        return write_into(file.fileno(), parts)


def write_into(descriptor: int, parts: Sequence[Any]) -> FileDigest:
    """Write what lies in pieces of memory into an open file; return its size and hash.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    left = [memoryview(part) for part in parts]
    sha256 = hashlib.sha256()
    for part in left:
        sha256.update(part)
    size = sum(part.nbytes for part in left)
    _write(descriptor, left)
    return FileDigest(size, sha256.hexdigest())


def _write(descriptor: int, left: list[memoryview]) -> None:
    """Write all of what lies in pieces of memory behind what is written."""
    first = 0
    while first < len(left):
        done = os.writev(descriptor, left[first : first + _AT_ONCE])
        while first < len(left) and done >= left[first].nbytes:
            done -= left[first].nbytes
            first += 1
        if done:
            left[first] = left[first][done:]


def safetensors_dtype(name: str, dtype: torch.dtype) -> str:
    """Return what safetensors calls a tensor's type.

    Raises:
        CheckpointError: it has no name for it.
    """
    if str(dtype) not in NAMES:
        raise CheckpointError(
            f"{name} is a tensor of {dtype}, which a checkpoint cannot hold. Known: "
            f"{', '.join(NAMES)}."
        )
    return NAMES[str(dtype)]


def dtype_of(name: str) -> torch.dtype:
    """Return torch's type for a name of safetensors."""
    import torch

    dtype: torch.dtype = getattr(torch, DTYPES[name])
    return dtype
