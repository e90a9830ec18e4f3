"""The manifest: what files a checkpoint has, their hashes, and where each tensor's slices lie.

It is written last, so that a folder without one is not whole. Tensors are kept by kind ("model",
"optimizer", "average") and by name. A tensor may lie in slices, each in a file of its own, so that
many processes can write one checkpoint and each can read what it needs.
"""

import hashlib
import itertools
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import surestep
from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.tensors import DTYPES, File
from surestep.record.files import dumps

FORMAT = 3
MANIFEST = "manifest.json"
RECORD = "state.json"  # what a checkpoint holds besides tensors
LARGEST = 2**28  # bytes of a manifest: a million tensors
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PIECE = 2**24  # bytes: what is hashed at once


class Slice(NamedTuple):
    """A box of a tensor, as it lies in a file under the tensor's name."""

    file: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class Stored(NamedTuple):
    """A tensor as it lies in a checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]


Tensors = Mapping[str, Mapping[str, Stored]]  # by kind, by name


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is made of."""

    step: int
    files: Mapping[str, File]
    tensors: Tensors

    def text(self) -> str:
        """Return the manifest as JSON."""
        tensors = {
            kind: {name: _as_dict(each) for name, each in stored.items()}
            for kind, stored in self.tensors.items()
        }
        files = {name: each._asdict() for name, each in self.files.items()}
        about = {"format": FORMAT, "surestep": surestep.__version__, "step": self.step}
        return dumps({**about, "files": files, "tensors": tensors}) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest; its files are not looked into.

    Raises:
        CheckpointError: missing, not whole, hostile, or of another surestep's format.
    """
    try:
        file = path / MANIFEST
        if size_of(file) > LARGEST:
            raise ValueError(f"it has {file.stat().st_size:,} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
        version = int(found["format"])
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} cannot be read: it has no {MANIFEST}, so it is not whole, or is older than "
            "surestep's first release."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {MANIFEST}: {error!r}.") from error
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this surestep reads up to {FORMAT}. Install a newer "
            "one: pip install -U surestep."
        )
    try:
        files = {_plain(name): _file(each) for name, each in found["files"].items()}
        tensors = {
            str(kind): {name: _stored(each, files) for name, each in stored.items()}
            for kind, stored in found["tensors"].items()
        }
        _check(RECORD in files, f"no {RECORD} among the files")
        return Manifest(_count(found["step"]), files, tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {MANIFEST}: {error!r}.") from error


def verify(path: Path, *, fresh: bool = False) -> Manifest:
    """Read every file of a checkpoint and compare it with the manifest; return the manifest.

    Args:
        path: of the checkpoint.
        fresh: just written and synced: read from the disk, not from what the system still holds.

    Raises:
        CheckpointError: a file is missing, has another size or other bytes, or is a link.
    """
    manifest = read_manifest(path)
    for name, expected in manifest.files.items():
        try:
            size = size_of(path / name)
            actual = File(size, _sha256(path / name, fresh=fresh) if size == expected.bytes else "")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {name}: {error}.") from error
        if actual.bytes != expected.bytes:
            raise CheckpointError(
                f"{path} is damaged: {name} has {actual.bytes:,} bytes instead of "
                f"{expected.bytes:,}."
            )
        if actual != expected:
            raise CheckpointError(f"{path} is damaged: {name} has other bytes than were written.")
    return manifest


def _sha256(path: Path, *, fresh: bool) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if fresh and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def size_of(path: Path) -> int:
    """Return the size of a file that is no link and nothing stranger."""
    found = path.lstat()
    _check(stat.S_ISREG(found.st_mode), f"{path.name} is a link or no file")
    return found.st_size


def _as_dict(stored: Stored) -> dict[str, Any]:
    return {**stored._asdict(), "slices": [each._asdict() for each in stored.slices]}


def _stored(found: Any, files: Mapping[str, File]) -> Stored:
    slices = tuple(
        Slice(each["file"], _shape(each["offset"]), _shape(each["shape"]))
        for each in found["slices"]
    )
    stored = Stored(found["dtype"], _shape(found["shape"]), slices)
    _check(stored.dtype in DTYPES, f"type {stored.dtype!r}")
    for each in slices:
        _check(each.file in files, f"file {each.file!r} of a tensor is not among the files")
        sizes = {len(each.offset), len(each.shape), len(stored.shape)}
        boxes = zip(each.offset, each.shape, stored.shape, strict=False)
        within = len(sizes) == 1 and all(begin + size <= whole for begin, size, whole in boxes)
        _check(within, f"a slice at {each.offset} of {each.shape} in a tensor of {stored.shape}")
    whole = sum(math.prod(each.shape) for each in slices) == math.prod(stored.shape)
    apart = not any(_overlap(*pair) for pair in itertools.combinations(slices, 2))
    _check(bool(slices) and whole and apart, "slices that do not make up their tensor")
    return stored


def _overlap(one: Slice, other: Slice) -> bool:
    """Say whether two boxes have an element in common."""
    sides = zip(one.offset, one.shape, other.offset, other.shape, strict=True)
    return all(max(a, b) < min(a + n, b + m) for a, n, b, m in sides)


def _file(found: Any) -> File:
    return File(_count(found["bytes"]), str(found["sha256"]))


def _shape(found: Any) -> tuple[int, ...]:
    _check(isinstance(found, list), f"{found!r} is no list of sizes")
    return tuple(map(_count, found))


def _count(found: Any) -> int:
    _check(type(found) is int and 0 <= found < 2**63, f"{found!r} is no size")
    return int(found)


def _plain(name: str) -> str:
    _check(bool(_PLAIN.fullmatch(name)) and name != MANIFEST, f"{name!r} is no file's name")
    return name


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
