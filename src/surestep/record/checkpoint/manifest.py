"""The manifest: the files of a checkpoint, their hashes, and where the slices of each tensor are.

It is written last, so a folder without one is not a complete checkpoint. Tensors have a kind
("model", "optimizer", "average") and a name. A tensor can be in several slices, each in its own
file, so that many processes can write one checkpoint and each can read what it needs.
"""

import errno
import hashlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from surestep.base.errors import CheckpointError, CorruptCheckpointError
from surestep.base.version import VERSION
from surestep.engine.distributed.shards import TensorMeta
from surestep.engine.host_memory import ran_out_on_host
from surestep.record.io import dumps, open_regular, parse_json, read_regular, size_of
from surestep.record.safetensors_writer import DTYPES, FileDigest, dtype_of
from surestep.record.schemas import MAX_INT, format_value

FORMAT = 7
OLDEST = 6  # without the samples that a metric is of
MANIFEST = "manifest.json"
RECORD = "state.json"  # what a checkpoint holds besides tensors
BUFFERS = "buffers"  # those that the model's state_dict leaves out, if training changed them
_MAX_SPLIT = 8  # dimensions along which a tensor can be split
_MAX_DIMENSIONS = 64  # as in torch
_NO_HASH = "0" * 64  # in place of the manifest's own hash while that is computed
# Errors of files that are lost or broken. Others may pass (too many open files) or be corrected
# (a missing permission), so they are not a reason to resume from an older checkpoint.
_LOST = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.ENXIO}
    | {getattr(errno, "EUCLEAN", errno.EIO)}
)
_NO_MEMORY = "Cannot allocate memory"  # of safetensors, whose errors have many types
_MAX_SHOWN = 300  # characters of a file that a message shows
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


class CheckpointVanishedError(CheckpointError):
    """A checkpoint was deleted while it was read."""


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, means that the host has no memory left."""
    if error is None:
        return False
    if ran_out_on_host(error) or _NO_MEMORY in str(error):
        return True
    return lacks_memory(error.__cause__)


def checkpoint_error(path: Path, file: str, what: object) -> CheckpointError:
    """Return the error for a file of a checkpoint; `what` is wrong with it."""
    if isinstance(what, BaseException) and lacks_memory(what):
        return CheckpointError(
            f"{path} cannot be read: {file}: there is not enough memory for it. Free some, or "
            "raise the limit of this process (ulimit -v, or that of the job), and try again."
        )
    lost = isinstance(what, FileNotFoundError)  # that of safetensors has no errno
    if isinstance(what, OSError) and not lost and what.errno not in _LOST:
        return CheckpointError(f"{path} cannot be read: {file}: {what.strerror or what}.")
    if not os.path.isdir(path):
        return CheckpointVanishedError(f"{path} does not exist: it was deleted or moved.")
    text = str((what.strerror or what) if isinstance(what, OSError) else what)
    text = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return CorruptCheckpointError(f"{path} is damaged: {file}: {plain}.")


class TensorSlice(NamedTuple):
    """A shard of a tensor, in a file under the tensor's name."""

    file: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class TensorEntry(NamedTuple):
    """A tensor of a checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    slices: tuple[TensorSlice, ...]

    @property
    def described(self) -> TensorMeta:
        """Shape and dtype, for torch."""
        return TensorMeta(self.shape, dtype_of(self.dtype))


Tensors = Mapping[str, Mapping[str, TensorEntry]]  # by kind, by name


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint."""

    step: int
    files: Mapping[str, FileDigest]
    tensors: Tensors


def manifest_text(step: int, files: Mapping[str, FileDigest], tensors: str) -> str:
    """Return a manifest as JSON, given its text about tensors."""
    about = {"sha256": _NO_HASH, "format": FORMAT, "surestep": VERSION, "step": step}
    text = dumps({**about, "files": {name: entry._asdict() for name, entry in files.items()}})
    return add_self_hash(f'{text[:-1]}, "tensors": {tensors}}}')


def add_self_hash(text: str) -> str:
    """Return a manifest with its own hash, taken with zeros instead of the hash."""
    return text.replace(_NO_HASH, hashlib.sha256(text.encode()).hexdigest(), 1)


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest, and no other file."""
    try:
        found = _check_self_hash(read_regular(path / MANIFEST))
        version = _count(found["format"])
    except FileNotFoundError as error:
        raise checkpoint_error(
            path, MANIFEST, "it is missing, so the checkpoint is not complete"
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise checkpoint_error(path, MANIFEST, error) from error
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this surestep reads up to {FORMAT}. Install a newer "
            "one: pip install -U surestep."
        )
    if version < OLDEST:
        raise CheckpointError(
            f"{path} has format {version}, which is older than surestep's first release. Read it "
            "with the surestep that wrote it."
        )
    try:
        files = {
            _file_name(name): FileDigest(_count(entry["bytes"]), str(entry["sha256"]))
            for name, entry in found["files"].items()
        }
        tensors = {
            str(kind): {name: _tensor_entry(entry, files) for name, entry in stored.items()}
            for kind, stored in found["tensors"].items()
        }
        _check(RECORD in files, f"no {RECORD} among the files")
        return Manifest(_count(found["step"]), files, tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise checkpoint_error(path, MANIFEST, format_value(error)) from error


def _check_self_hash(data: bytes) -> dict[str, Any]:
    found = parse_json(data)
    _check(isinstance(found, dict), "it is not an object")
    hashed = str(found.get("sha256")).encode()
    actual = hashlib.sha256(data.replace(hashed, _NO_HASH.encode(), 1)).hexdigest()
    _check(hashed == actual.encode(), "it has other bytes than were written")
    return dict(found)


def verify(path: Path) -> Manifest:
    """Read every file of a checkpoint and compare it with the manifest; return the manifest.

    Raises:
        CorruptCheckpointError: a file is missing, has another size or other bytes, or is a link.
        CheckpointError: of another format, or not readable.
    """
    manifest = read_manifest(path)
    check_sizes(path, manifest)
    for name, expected in manifest.files.items():
        _check_bytes(path, name, expected)
    return manifest


def iter_errors(path: Path) -> Iterator[CheckpointError]:
    """Read every file of a checkpoint; yield what `verify` would raise, for each damaged file."""
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        yield error
        return
    for name, expected in manifest.files.items():
        try:
            _check_size(path, name, expected)
            _check_bytes(path, name, expected)
        except CheckpointError as error:
            yield error


def check_sizes(path: Path, manifest: Manifest) -> None:
    """Check that each file of a checkpoint exists with its size; its bytes are not read."""
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
        with open_regular(f"{path}/{name}") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except (OSError, ValueError, MemoryError) as error:
        raise checkpoint_error(path, name, error) from error
    if sha256 != expected.sha256:
        raise checkpoint_error(path, name, "it has other bytes than were written")


def _tensor_entry(found: Any, files: Mapping[str, FileDigest]) -> TensorEntry:
    slices = tuple(
        TensorSlice(part["file"], _shape(part["offset"]), _shape(part["shape"]))
        for part in found["slices"]
    )
    entry = TensorEntry(found["dtype"], _shape(found["shape"]), slices)
    _check(entry.dtype in DTYPES, f"type {entry.dtype!r}")
    for part in slices:
        _check(part.file in files, f"file {part.file!r} of a tensor is not among the files")
        ranks = {len(part.offset), len(part.shape), len(entry.shape)}
        extents = zip(part.offset, part.shape, entry.shape, strict=False)
        within = len(ranks) == 1 and all(begin + size <= full for begin, size, full in extents)
        _check(within, f"a slice at {part.offset} of {part.shape} in a tensor of {entry.shape}")
    in_own_files = len({part.file for part in slices}) == len(slices)
    _check(
        bool(slices) and in_own_files and _covers(entry), "slices that do not make up their tensor"
    )
    return entry


def _covers(entry: TensorEntry) -> bool:
    """Return whether the slices cover their tensor exactly once.

    They do if their signed corners add up to those of the full tensor, which takes linear time.
    """
    full = TensorSlice("", tuple(0 for _ in entry.shape), entry.shape)
    split = [d for d, n in enumerate(entry.shape) if any(s.shape[d] != n for s in entry.slices)]
    if len(split) > _MAX_SPLIT:
        return False
    corners: Counter[tuple[int, ...]] = Counter()
    for shard, sign in [(full, -1), *((part, 1) for part in entry.slices)]:
        sides = [((shard.offset[d], 1), (shard.offset[d] + shard.shape[d], -1)) for d in split]
        for corner in itertools.product(*sides):
            corners[tuple(at for at, _ in corner)] += sign * math.prod(end for _, end in corner)
    return not any(corners.values())


def _shape(found: Any) -> tuple[int, ...]:
    _check(isinstance(found, list), f"{found!r} is not a list of sizes")
    _check(len(found) <= _MAX_DIMENSIONS, f"{len(found)} dimensions")
    return tuple(map(_count, found))


def _count(found: Any) -> int:
    _check(type(found) is int and 0 <= found <= MAX_INT, f"{found!r} is not a size")
    return int(found)


def _file_name(name: str) -> str:
    plain = bool(_FILE_NAME.fullmatch(name)) and name != MANIFEST
    _check(plain, f"not a file name: {name[:60]!r}")
    return name


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
