"""Files of one folder: written, then synced, then read back from the disk.

Each is opened once for all three. Training pays for the calls of the thread that writes: the two
take turns in Python, and each call hands the turn over.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError, ParallelError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.state.state import State
from surestep.record.checkpoint.errors import checkpoint_error, lacks_memory
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    RECORD,
    Manifest,
    TensorEntry,
    TensorSlice,
    manifest_text,
)
from surestep.record.checkpoint.reader import check_readable
from surestep.record.checkpoint.staging import ShardExtent, SnapshotStager, StateSnapshot
from surestep.record.checkpoint.state_json import (
    CheckpointInfo,
    as_numbers,
    check_numbers,
    info_from_record,
    parse_state_json,
)
from surestep.record.io import fsync, os_error_hint
from surestep.record.safetensors_writer import FileDigest, safetensors_dtype, write_into
from surestep.record.temp_files import TAKEN, temp_name

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PIECE = 2**24  # bytes: what is hashed at once


class CheckpointFiles:
    """Files that are being written into a folder; to be used in a `with`, which closes them.

    Attributes:
        files: what each must be, by its name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, FileDigest] = {}
        self._open: dict[str, int] = {}

    def __enter__(self) -> "CheckpointFiles":
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def write(self, name: str, parts: Sequence[Any]) -> None:
        """Write what lies in pieces of memory as a file, which is not there yet.

        It is on its way to the disk while the next one is hashed.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        self._open[name] = os.open(f"{self.folder}/{name}", _NEW, 0o666)
        self.files[name] = write_into(self._open[name], parts)
        _let_go(self._open[name])

    def sync(self) -> None:
        """Make the bytes of the files, and then their names, survive a power cut.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        for descriptor in self._open.values():
            os.fsync(descriptor)
        fsync(self.folder)

    def verify(self) -> None:
        """Read the files from the disk, and compare them with what was in memory.

        What the system still holds of them in memory is let go first.

        Raises:
            DamagedError: one has other bytes than were written.
            CheckpointError: kept from us.
        """
        for name, descriptor in self._open.items():
            try:
                sha256 = _sha256(descriptor, self.files[name].bytes)
            except OSError as error:
                raise checkpoint_error(self.folder, name, error) from error
            if sha256 != self.files[name].sha256:
                raise checkpoint_error(self.folder, name, "it has other bytes than were written")


def _let_go(descriptor: int) -> None:
    """Ask the system to keep no copy of a file; what is not on the disk yet it begins to write."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _sha256(descriptor: int, size: int) -> str:
    """Return the hash of an open file, read from the disk; of a longer one another."""
    _let_go(descriptor)
    digest, at = hashlib.sha256(), 0
    while at < size and (piece := os.pread(descriptor, min(size + 1 - at, _PIECE), at)):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def save_checkpoint(folder: Path, state: State, *, cycle: int | None = None) -> Path:
    """Write the state as `folder/step-XXXXXXXX`; return its path.

    Args:
        folder: of the checkpoints.
        state: what is saved.
        cycle: the cycle of the schedule that ended here, from 1, so that it is kept.

    Raises:
        CheckpointError: the disk is full or cannot be written, or a part has no plain form.
    """
    return write_checkpoint(folder, SnapshotStager().take(state, cycle=cycle)).path


def write_checkpoint(folder: Path, snapshot: StateSnapshot) -> CheckpointInfo:
    """Write a snapshot as `folder/step-XXXXXXXX`; return what it says of itself.

    It has its name only after every byte was synced and read back.

    Raises:
        CheckpointError: the disk is full, cannot be written, or gives back other bytes.
    """
    final = folder / f"step-{snapshot.step:08d}"
    temporary = temp_name(final, "tmp")
    try:
        make_temp_dir(temporary)
        _write(temporary, snapshot)
        record = _taken(temporary, snapshot)
        publish(temporary, final)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if lacks_memory(error):
            raise CheckpointError(
                f"{final} could not be written and verified: there is not enough memory. The "
                "checkpoints before it are as they were. Free some memory, or raise the limit."
            ) from error
        if not isinstance(error, OSError):
            raise
        raise CheckpointError(
            f"{final} could not be written: {error.strerror or error}. The checkpoints before it "
            f"are as they were. {os_error_hint(error)}"
        ) from error
    return info_from_record(final, record)


def make_temp_dir(temporary: Path) -> None:
    """Make the folder that the files are written into, in place of what is left of one."""
    try:
        temporary.mkdir()
    except FileNotFoundError:
        temporary.parent.mkdir(exist_ok=True)  # its parent is there, or a mount has vanished
        temporary.mkdir()
    except FileExistsError:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()


def _write(folder: Path, snapshot: StateSnapshot) -> None:
    """Write the files, the manifest last; sync them and read them back."""
    with CheckpointFiles(folder) as written:
        written.write(RECORD, [snapshot.record])
        for file, block in snapshot.layout.blocks.items():
            written.write(file, block.parts)
        text = manifest_text(snapshot.step, written.files, snapshot.layout.text)
        written.write(MANIFEST, [text.encode()])
        written.sync()
        written.verify()


def _taken(folder: Path, snapshot: StateSnapshot) -> Mapping[str, Any]:
    """Return what lies beside the tensors as it would be loaded, or what is new of it.

    Only numbers of the engine's are new where all else was found to be readable the last time.

    Raises:
        DamagedError: it would be refused.
    """
    if snapshot.layout.known == snapshot.others:
        with suppress(ValueError):  # the words for what is wrong come from what was written
            numbers = as_numbers(snapshot.numbers)
            check_numbers(numbers)
            return numbers
    record = parse_state_json(folder, snapshot.record, snapshot.step)
    if snapshot.layout.known is None:
        check_readable(folder, record)
    snapshot.layout.known = snapshot.others
    return record


def publish(temporary: Path, final: Path) -> None:
    """Give the folder its name; one that already bears it makes way until then."""
    old: Path | None = None
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        old = _in_place_of(final, temporary)
    fsync(final.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _in_place_of(final: Path, temporary: Path) -> Path:
    """Give a folder a name that is taken; return where the one that bore it lies now."""
    old = temp_name(final, "old")
    final.rename(old)
    try:
        temporary.rename(final)
    except OSError:
        old.rename(final)
        raise
    return old


_MOST = 3  # ranks whose trouble is told


def snapshot_all_ranks(take: Callable[[], StateSnapshot], world: Communicator) -> StateSnapshot:
    """Take a snapshot on all ranks; where one of them cannot, none has any.

    Raises:
        CheckpointError: a part of the state has no plain form, here or on another rank.
    """
    if world.size == 1:
        return take()
    try:
        snapshot = take()
    except CheckpointError as error:
        world.all_gather_text(str(error))
        raise
    for rank, text in enumerate(world.all_gather_text("")):
        if text:
            raise CheckpointError(f"Rank {rank} cannot be saved: {text}")
    return snapshot


def write_sharded(folder: Path, snapshot: StateSnapshot, world: Communicator) -> CheckpointInfo:
    """Write a snapshot of many ranks as `folder/step-XXXXXXXX`; return what it says of itself.

    All ranks call this, and all of them return or raise; the metrics are told to the first alone.
    It has its name only after every byte was synced and read back.

    Args:
        folder: of the checkpoints, which all ranks see.
        snapshot: what this rank writes.
        world: the ranks, over a group that nobody else uses meanwhile.

    Raises:
        CheckpointError: on one of them the disk is full, cannot be written, or gives back other
            bytes; or a rank is gone.
    """
    final = folder / f"step-{snapshot.step:08d}"
    temporary = temp_name(final, "tmp")  # of the first rank, which tells it to the others
    try:
        made = _agreed(world, final, lambda: _made(temporary) if world.is_first else "")
        temporary = final.with_name(json.loads(made[0])["said"])
        texts = _agreed(world, final, lambda: _written(temporary, snapshot, world.rank))
        _agreed(world, final, lambda: _finished(temporary, final, snapshot, texts, world))
    except BaseException:
        if world.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if not world.is_first:
        return CheckpointInfo(snapshot.step, {}, final)
    return info_from_record(final, parse_state_json(final, snapshot.record, snapshot.step))


def _agreed(world: Communicator, final: Path, act: Callable[[], Any]) -> list[str]:
    """Act on each rank, and return what all of them tell; the trouble of one is that of all.

    Raises:
        CheckpointError: one of them met trouble.
    """
    raised: BaseException | None = None
    told: dict[str, Any] = {}
    try:
        told = {"said": act()}
    except OSError as error:
        raised, told = error, {"errno": error.errno, "strerror": error.strerror or str(error)}
    except CheckpointError as error:
        raised, told = error, {"error": str(error)}
    except BaseException as error:  # no trouble of the disk's: this rank ends with it
        _texts(world, final, {"error": repr(error)})
        raise
    texts = _texts(world, final, told)
    _check(final, [json.loads(text) for text in texts], raised)
    return texts


def _texts(world: Communicator, final: Path, told: Mapping[str, Any]) -> list[str]:
    try:
        return world.all_gather_text(json.dumps(told))
    except (RuntimeError, ParallelError) as error:  # torch has no other where somebody is missing
        raise CheckpointError(
            f"{final} could not be written: not every rank answered: {error}. The checkpoints "
            "before it are as they were."
        ) from error


def _check(final: Path, told: Sequence[Mapping[str, Any]], raised: BaseException | None) -> None:
    """Raise on all ranks the same, with the words of those that met trouble.

    Raises:
        CheckpointError: one did.
    """
    bad = {rank: each for rank, each in enumerate(told) if "said" not in each}
    if not bad:
        return
    said = [
        f"rank {rank}: {each.get('strerror') or each['error']}"
        for rank, each in list(bad.items())[:_MOST]
    ]
    more = f"; and {len(bad) - _MOST} more" if len(bad) > _MOST else ""
    of_disk = next((each for each in bad.values() if "strerror" in each), None)
    cause, hint = raised, ""
    if of_disk is not None:
        cause = OSError(of_disk["errno"], of_disk["strerror"])
        hint = f" {os_error_hint(cause)}"
    raise CheckpointError(
        f"{final} could not be written: {'; '.join(said)}{more}. The checkpoints before it are as "
        f"they were.{hint}"
    ) from cause


def _made(temporary: Path) -> str:
    make_temp_dir(temporary)
    return temporary.name


def _written(folder: Path, snapshot: StateSnapshot, rank: int) -> dict[str, Any]:
    """Write, sync and read back what this rank has; return what the manifest is to say of it."""
    tensors: dict[str, dict[str, Any]] = {}
    with CheckpointFiles(folder) as written:
        if rank == 0:
            written.write(RECORD, [snapshot.record])
        for kind, named in snapshot.layout.buffers.items():
            written.write(_file(kind, rank), snapshot.layout.file_of(kind).parts)
            tensors[kind] = {
                name: [
                    safetensors_dtype(name, each.dtype),
                    list(each.shape),
                    *_place(snapshot.boxes[kind][name]),
                ]
                for name, each in named.items()
            }
        written.sync()
        written.verify()
    return {"files": written.files, "tensors": tensors}


def _file(kind: str, rank: int) -> str:
    return f"{kind}.rank-{rank:05d}.safetensors"


def _place(box: ShardExtent) -> tuple[list[int], list[int]]:
    return list(box.full_shape), list(box.offset)


def _finished(
    temporary: Path, final: Path, snapshot: StateSnapshot, texts: Sequence[str], world: Communicator
) -> None:
    """Write the manifest and give the folder its name, on the first rank."""
    if not world.is_first:
        return
    parts = [json.loads(each)["said"] for each in texts]
    record = parse_state_json(temporary, snapshot.record, snapshot.step)
    text = merge_manifests(snapshot.step, parts).text()
    with CheckpointFiles(temporary) as written:
        written.write(MANIFEST, [text.encode()])
        written.sync()
        written.verify()
    check_readable(temporary, record)
    publish(temporary, final)


def merge_manifests(step: int, parts: Sequence[Mapping[str, Any]]) -> Manifest:
    """Return the manifest of a checkpoint from what each rank has written of it.

    Raises:
        CheckpointError: ranks say different things of one tensor.
    """
    files: dict[str, FileDigest] = {}
    tensors: dict[str, dict[str, TensorEntry]] = {}
    for rank, part in enumerate(parts):
        files |= {name: FileDigest(*each) for name, each in part["files"].items()}
        for kind, named in part["tensors"].items():
            known = tensors.setdefault(kind, {})
            file = _file(kind, rank)
            for name, (dtype, shape, whole, offset) in named.items():
                piece = TensorSlice(file, tuple(offset), tuple(shape))
                before = known.get(name) or TensorEntry(dtype, tuple(whole), ())
                if before[:2] != (dtype, tuple(whole)):
                    raise CheckpointError(
                        f"rank {rank} has {name} as {dtype} of {tuple(whole)}, and another as "
                        f"{before.dtype} of {before.shape}"
                    )
                known[name] = before._replace(slices=(*before.slices, piece))
    return Manifest(step, files, tensors)
