"""The manifest: what files a checkpoint has, their hashes, and where each tensor's slices lie.

It is written last, so that a folder without one is not whole. Tensors are kept by kind ("model",
"optimizer", "average") and by name. A tensor may lie in slices, each in a file of its own, so that
many processes can write one checkpoint and each can read what it needs.
"""

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from surestep.base.errors import CheckpointError
from surestep.base.version import VERSION
from surestep.engine.distributed.shards import TensorMeta
from surestep.record.checkpoint.errors import checkpoint_error
from surestep.record.io import dumps, open_regular, parse_json, read_regular, size_of
from surestep.record.safetensors_writer import DTYPES, FileDigest, dtype_of
from surestep.record.schema import format_value

FORMAT = 5
MANIFEST = "manifest.json"
RECORD = "state.json"  # what a checkpoint holds besides tensors
_CUT = 8  # dimensions along which a tensor may be cut
_DIMENSIONS = 64  # torch has no more
_UNKNOWN = "0" * 64  # stands for the manifest's own hash while that is taken
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PIECE = 2**24  # bytes: what is hashed at once


class TensorSlice(NamedTuple):
    """A box of a tensor, as it lies in a file under the tensor's name."""

    file: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class TensorEntry(NamedTuple):
    """A tensor as it lies in a checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    slices: tuple[TensorSlice, ...]

    @property
    def described(self) -> TensorMeta:
        """What the tensor is, as torch says it."""
        return TensorMeta(self.shape, dtype_of(self.dtype))


Tensors = Mapping[str, Mapping[str, TensorEntry]]  # by kind, by name


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is made of."""

    step: int
    files: Mapping[str, FileDigest]
    tensors: Tensors

    def text(self) -> str:
        """Return the manifest as JSON."""
        return manifest_text(self.step, self.files, tensors_text(self.tensors))


def manifest_text(step: int, files: Mapping[str, FileDigest], tensors: str) -> str:
    """Return a manifest as JSON; `tensors` is what `tensors_text` says of them."""
    about = {"sha256": _UNKNOWN, "format": FORMAT, "surestep": VERSION, "step": step}
    text = dumps({**about, "files": {name: each._asdict() for name, each in files.items()}})
    return add_self_hash(f'{text[:-1]}, "tensors": {tensors}}}')


def tensors_text(tensors: Tensors) -> str:
    """Return what a manifest says of tensors, as JSON."""
    return dumps(
        {
            kind: {name: _as_dict(each) for name, each in stored.items()}
            for kind, stored in tensors.items()
        }
    )


def add_self_hash(text: str) -> str:
    """Return a manifest with its own hash in it: of its bytes with zeros where the hash stands."""
    return text.replace(_UNKNOWN, hashlib.sha256(text.encode()).hexdigest(), 1)


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest; its files are not looked into.

    Raises:
        DamagedError: missing, not whole, or hostile.
        CheckpointError: of another surestep's format.
    """
    try:
        found = _unsealed(read_regular(path / MANIFEST))
        version = _count(found["format"])
    except FileNotFoundError as error:
        raise checkpoint_error(
            path, MANIFEST, "it is missing, so the checkpoint is not whole"
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise checkpoint_error(path, MANIFEST, error) from error
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this surestep reads up to {FORMAT}. Install a newer "
            "one: pip install -U surestep."
        )
    if version < FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, which is older than surestep's first release. Read it "
            "with the surestep that wrote it."
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
        raise checkpoint_error(path, MANIFEST, format_value(error)) from error


def _unsealed(data: bytes) -> dict[str, Any]:
    """Parse a manifest whose own hash is that of its bytes."""
    found = parse_json(data)
    _check(isinstance(found, dict), "it is no object")
    hashed = str(found.get("sha256")).encode()
    actual = hashlib.sha256(data.replace(hashed, _UNKNOWN.encode(), 1)).hexdigest()
    _check(hashed == actual.encode(), "it has other bytes than were written")
    return dict(found)


def verify(path: Path) -> Manifest:
    """Read every file of a checkpoint and compare it with the manifest; return the manifest.

    Raises:
        DamagedError: a file is missing, has another size or other bytes, or is a link.
        CheckpointError: kept from us, or of another surestep's format.
    """
    manifest = read_manifest(path)
    check_sizes(path, manifest)
    for name, expected in manifest.files.items():
        _check_bytes(path, name, expected)
    return manifest


def iter_errors(path: Path) -> Iterator[CheckpointError]:
    """Read every file of a checkpoint; yield what `verify` would raise, for each that is damaged.

    Raises:
        DamagedError: the manifest is, so that nothing is known of the others.
        CheckpointError: kept from us, or of another surestep's format.
    """
    yield from iter_file_errors(path, read_manifest(path).files)


def iter_file_errors(path: Path, files: Mapping[str, FileDigest]) -> Iterator[CheckpointError]:
    """Read some files of a checkpoint; yield what `verify` would raise, for each that is damaged.

    Args:
        path: of the checkpoint.
        files: what the manifest says of them.
    """
    for name, expected in files.items():
        try:
            _check_size(path, name, expected)
            _check_bytes(path, name, expected)
        except CheckpointError as error:
            yield error


def check_sizes(path: Path, manifest: Manifest) -> None:
    """Check that each file of a checkpoint is there with its size; its bytes are not looked at.

    Raises:
        DamagedError: one is not.
    """
    for name, expected in manifest.files.items():
        _check_size(path, name, expected)


def _check_size(path: Path, name: str, expected: FileDigest) -> None:
    try:
        size = size_of(path / name)
    except (OSError, ValueError) as error:
        raise checkpoint_error(path, name, error) from error
    if size != expected.bytes:
        raise checkpoint_error(path, name, f"it has {size:,} bytes instead of {expected.bytes:,}")


def _check_bytes(path: Path, name: str, expected: FileDigest) -> None:
    try:
        sha256 = _sha256(f"{path}/{name}", expected.bytes)
    except (OSError, ValueError, MemoryError) as error:
        raise checkpoint_error(path, name, error) from error
    if sha256 != expected.sha256:
        raise checkpoint_error(path, name, "it has other bytes than were written")


def _sha256(path: str, size: int) -> str:
    """Return the hash of a file; no more memory is taken than its expected size needs."""
    digest, at_once = hashlib.sha256(), min(size + 1, _PIECE)
    with open_regular(path) as file:
        while piece := file.read(at_once):
            digest.update(piece)
    return digest.hexdigest()


def _as_dict(stored: TensorEntry) -> dict[str, Any]:
    return {**stored._asdict(), "slices": [each._asdict() for each in stored.slices]}


def _stored(found: Any, files: Mapping[str, FileDigest]) -> TensorEntry:
    slices = tuple(
        TensorSlice(each["file"], _shape(each["offset"]), _shape(each["shape"]))
        for each in found["slices"]
    )
    stored = TensorEntry(found["dtype"], _shape(found["shape"]), slices)
    _check(stored.dtype in DTYPES, f"type {stored.dtype!r}")
    for each in slices:
        _check(each.file in files, f"file {each.file!r} of a tensor is not among the files")
        sizes = {len(each.offset), len(each.shape), len(stored.shape)}
        boxes = zip(each.offset, each.shape, stored.shape, strict=False)
        within = len(sizes) == 1 and all(begin + size <= whole for begin, size, whole in boxes)
        _check(within, f"a slice at {each.offset} of {each.shape} in a tensor of {stored.shape}")
    apart = len({each.file for each in slices}) == len(slices)
    _check(bool(slices) and apart and _tile(stored), "slices that do not make up their tensor")
    return stored


def _tile(stored: TensorEntry) -> bool:
    """Say whether the slices cover their tensor once.

    They do if the corners of all of them, each with its sign, are those of the whole: this takes
    time as there are slices, and comparing them pair by pair as the square of it.
    """
    whole = TensorSlice("", tuple(0 for _ in stored.shape), stored.shape)
    cut = [d for d, n in enumerate(stored.shape) if any(s.shape[d] != n for s in stored.slices)]
    if len(cut) > _CUT:
        return False
    corners: Counter[tuple[int, ...]] = Counter()
    for box, sign in [(whole, -1), *((each, 1) for each in stored.slices)]:
        sides = [((box.offset[d], 1), (box.offset[d] + box.shape[d], -1)) for d in cut]
        for corner in itertools.product(*sides):
            corners[tuple(at for at, _ in corner)] += sign * math.prod(end for _, end in corner)
    return not any(corners.values())


def _file(found: Any) -> FileDigest:
    return FileDigest(_count(found["bytes"]), str(found["sha256"]))


def _shape(found: Any) -> tuple[int, ...]:
    _check(isinstance(found, list), f"{found!r} is no list of sizes")
    _check(len(found) <= _DIMENSIONS, f"{len(found)} dimensions")
    return tuple(map(_count, found))


def _count(found: Any) -> int:
    _check(type(found) is int and 0 <= found < 2**63, f"{found!r} is no size")
    return int(found)


def _plain(name: str) -> str:
    plain = bool(_PLAIN.fullmatch(name)) and len(name) < 256 and name != MANIFEST
    _check(plain, f"no name of a file: {name[:60]!r}")
    return name


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
