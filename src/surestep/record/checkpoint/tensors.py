"""Files of tensors: written as safetensors piece by piece, with their hash; read by the library.

The library writes a whole file at once from memory and gives no hash. Written here, each tensor
passes once to the file and to the hash, so that the manifest tells what was in memory and not what
came to lie on the disk, and a full disk is an OSError with its number.

Source: https://github.com/huggingface/safetensors#format
"""

import hashlib
import json
from collections.abc import Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.base.errors import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PIECE = 2**24  # bytes: what is written and hashed at once
_ALIGNED = 8  # bytes: where the first tensor may begin


class File(NamedTuple):
    """What a file of a checkpoint must be, to be read."""

    bytes: int
    sha256: str


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> File:
    """Write tensors as a safetensors file; return its size and hash as they were in memory.

    Args:
        path: of the file, which is not there yet.
        tensors: by name; on the host and contiguous.
        about: what the header tells besides.

    Raises:
        OSError: the disk is full or cannot be written.
        CheckpointError: safetensors has no name for a tensor's type.
    """
    # Wide types first, as the library does: then each tensor lies at a multiple of its width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        shape, dtype = list(tensor.shape), name_of(name, tensor.dtype)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with path.open("xb", buffering=0) as file:
        hashed = _Hashed(file)
        hashed.write(len(text).to_bytes(8, "little"))
        hashed.write(text)
        for _, tensor in ordered:
            if tensor.numel():
                plain: Any = tensor.reshape(-1).view(torch.uint8).numpy()
                hashed.write(plain)
    return hashed.result()


def write_text(path: Path, text: str) -> File:
    """Write text; return its size and hash."""
    with path.open("xb", buffering=0) as file:
        hashed = _Hashed(file)
        hashed.write(text.encode())
    return hashed.result()


def name_of(name: str, dtype: torch.dtype) -> str:
    """Return what safetensors calls a tensor's type.

    Raises:
        CheckpointError: it has no name for it.
    """
    if dtype not in NAMES:
        raise CheckpointError(
            f"{name} is a tensor of {dtype}, which a checkpoint cannot hold. Known: "
            f"{', '.join(str(each) for each in NAMES)}."
        )
    return NAMES[dtype]


class _Hashed:
    """A file that is hashed as it is written.

    It has no buffer: a process that is forked meanwhile would write what is left in one again.
    """

    def __init__(self, file: RawIOBase) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> None:
        left = memoryview(data)
        while left:
            done = self.file.write(left[:_PIECE]) or 0
            self.sha256.update(left[:done])
            self.bytes += done
            left = left[done:]

    def result(self) -> File:
        return File(self.bytes, self.sha256.hexdigest())
