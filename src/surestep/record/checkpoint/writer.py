"""Write a checkpoint: every rank writes, syncs and reads back its files; rank 0 publishes them.

The files go into a temporary folder, the manifest last. The folder gets its name only after every
byte was synced and read back. One process is a world of one rank.
Each file is opened once for all three. Every system call of the writing thread interrupts training,
because both threads share Python's lock.
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
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.state.state import State
from surestep.record.checkpoint.errors import checkpoint_error, lacks_memory
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    RECORD,
    manifest_text,
)
from surestep.record.checkpoint.reader import check_readable
from surestep.record.checkpoint.staging import SnapshotStager, StateSnapshot
from surestep.record.checkpoint.state_json import (
    CheckpointInfo,
    as_numbers,
    check_numbers,
    info_from_record,
    parse_state_json,
)
from surestep.record.io import dumps, fsync, os_error_hint
from surestep.record.safetensors_writer import FileDigest, write_into
from surestep.record.temp_files import TAKEN, temp_name

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PIECE = 2**24  # bytes: what is hashed at once
_MAX_SHOWN = 3  # failed ranks that a message names


class CheckpointFiles:
    """Files being written into a folder; a context manager, which closes them.

    Attributes:
        files: size and hash of each, by name.
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
        """Write buffers as a new file, whose writeback starts while the next file is hashed.

        Raises:
            OSError: the disk is full or not writable.
        """
        self._open[name] = os.open(f"{self.folder}/{name}", _NEW, 0o666)
        self.files[name] = write_into(self._open[name], parts)
        _drop_cache(self._open[name])

    def sync(self) -> None:
        """Make the files, and then their names, survive a power cut.

        Raises:
            OSError: the disk is full or not writable.
        """
        for descriptor in self._open.values():
            os.fsync(descriptor)
        fsync(self.folder)

    def verify(self) -> None:
        """Read the files from the disk, not the page cache, and compare them with their hashes.

        Raises:
            CorruptCheckpointError: a file has other bytes than were written.
            CheckpointError: a file cannot be read.
        """
        for name, descriptor in self._open.items():
            try:
                sha256 = _sha256(descriptor, self.files[name].bytes)
            except OSError as error:
                raise checkpoint_error(self.folder, name, error) from error
            if sha256 != self.files[name].sha256:
                raise checkpoint_error(self.folder, name, "it has other bytes than were written")


def _drop_cache(descriptor: int) -> None:
    """Have the system drop a file from its page cache and start writing what is not on disk."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _sha256(descriptor: int, size: int) -> str:
    """Return the hash of an open file, read from the disk; one byte past `size` changes it."""
    _drop_cache(descriptor)
    digest, at = hashlib.sha256(), 0
    while at < size and (piece := os.pread(descriptor, min(size + 1 - at, _PIECE), at)):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def save_checkpoint(folder: Path, state: State, *, cycle: int | None = None) -> Path:
    """Write the state as `folder/step-XXXXXXXX` in one process; return its path.

    Args:
        folder: of the checkpoints.
        state: what is saved.
        cycle: the cycle of the schedule that ended here, from 1; such checkpoints are kept.

    Raises:
        CheckpointError: the disk is full or not writable, or part of the state cannot be encoded.
    """
    return write_checkpoint(folder, SnapshotStager().take(state, cycle=cycle)).path


def snapshot_all_ranks(take: Callable[[], StateSnapshot], world: Communicator) -> StateSnapshot:
    """Take a snapshot on every rank; if one rank fails, all raise.

    Raises:
        CheckpointError: part of the state cannot be encoded, here or on another rank.
    """
    try:
        snapshot = take()
    except CheckpointError as error:
        world.all_gather_text(str(error))
        raise
    for rank, text in enumerate(world.all_gather_text("")):
        if text:
            raise CheckpointError(f"Rank {rank} cannot be saved: {text}")
    return snapshot


def write_checkpoint(
    folder: Path, snapshot: StateSnapshot, world: Communicator = ALONE
) -> CheckpointInfo:
    """Write a snapshot as `folder/step-XXXXXXXX`; return its step, and on rank 0 its metrics.

    All ranks call this, and all of them return or all raise.

    Args:
        folder: of the checkpoints, which all ranks see.
        snapshot: what this rank writes.
        world: the ranks, over a process group that nothing else uses meanwhile.

    Raises:
        CheckpointError: on one rank the disk is full, not writable, or returns different bytes than
            were written; or a rank is gone.
    """
    final = folder / f"step-{snapshot.step:08d}"
    temporary = temp_name(final, "tmp")  # rank 0's name, which it sends to the others
    info = CheckpointInfo(snapshot.step, {}, final)

    def run(act: Callable[[], Any], *, first_only: bool = False) -> list[Any]:
        return _run_on_all(world, final, act if world.is_first or not first_only else lambda: None)

    def finish() -> None:
        nonlocal info
        info = info_from_record(final, _finish(temporary, snapshot, written))
        publish(temporary, final)

    try:
        names = run(lambda: make_temp_dir(temporary), first_only=True)
        temporary = final.with_name(names[0])
        written = run(lambda: _write_shard(temporary, snapshot, record=world.is_first))
        run(finish, first_only=True)
    except BaseException:
        if world.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return info


def _run_on_all(world: Communicator, final: Path, act: Callable[[], Any]) -> list[Any]:
    """Run a function on every rank; return the results of all, or raise the same error on all.

    Raises:
        CheckpointError: it failed on some rank.
    """
    cause: BaseException | None = None
    try:
        answer = {"result": act()}
    except BaseException as error:
        cause, answer = error, _describe_failure(error)
    answers = [answer] if world.size == 1 else _gather(world, final, answer)
    expected = cause is None or isinstance(cause, (OSError, CheckpointError)) or lacks_memory(cause)
    alone = world.size == 1 and isinstance(cause, CheckpointError) and not lacks_memory(cause)
    if cause is not None and (alone or not expected):
        raise cause
    _raise_failures(final, answers, cause)
    return [each["result"] for each in answers]


def _describe_failure(error: BaseException) -> dict[str, Any]:
    if lacks_memory(error):
        hint = "Free some memory, or raise the limit."
        return {"failed": "there is not enough memory", "hint": hint}
    if isinstance(error, OSError):
        return {"failed": error.strerror or str(error), "errno": error.errno}
    return {"failed": str(error) if isinstance(error, CheckpointError) else repr(error)}


def _gather(world: Communicator, final: Path, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [json.loads(text) for text in world.all_gather_text(json.dumps(answer))]
    except (RuntimeError, ParallelError) as error:  # what torch raises if a rank is missing
        raise CheckpointError(
            f"{final} could not be written: not every rank answered: {error}. Earlier checkpoints "
            "are unchanged."
        ) from error


def _raise_failures(
    final: Path, answers: Sequence[Mapping[str, Any]], cause: BaseException | None
) -> None:
    """Raise one error that names the first ranks that failed.

    Raises:
        CheckpointError: a rank failed.
    """
    failed = {rank: each for rank, each in enumerate(answers) if "failed" in each}
    if not failed:
        return
    shown = [
        f"rank {rank}: {each['failed']}" if len(answers) > 1 else str(each["failed"])
        for rank, each in list(failed.items())[:_MAX_SHOWN]
    ]
    more = f"; and {len(failed) - _MAX_SHOWN} more" if len(failed) > _MAX_SHOWN else ""
    hint = next((each["hint"] for each in failed.values() if "hint" in each), None)
    disk = next((each for each in failed.values() if "errno" in each), None)
    if disk is not None:
        error = cause if isinstance(cause, OSError) else OSError(disk["errno"], disk["failed"])
        cause, hint = error, os_error_hint(error)
    raise CheckpointError(
        f"{final} could not be written: {'; '.join(shown)}{more}. Earlier checkpoints are "
        f"unchanged.{f' {hint}' if hint else ''}"
    ) from cause


def make_temp_dir(temporary: Path) -> str:
    """Create the folder that the files are written into, without stale content; return its name."""
    try:
        temporary.mkdir()
    except FileNotFoundError:
        temporary.parent.mkdir(exist_ok=True)  # not parents=True: a missing run folder is an error
        temporary.mkdir()
    except FileExistsError:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    return temporary.name


def _write_shard(folder: Path, snapshot: StateSnapshot, *, record: bool) -> dict[str, Any]:
    """Write, sync and read back the files of this rank; return what the manifest needs of them."""
    with CheckpointFiles(folder) as written:
        if record:
            written.write(RECORD, [snapshot.record])
        for file, block in snapshot.layout.blocks.items():
            written.write(file, block.parts)
        written.sync()
        written.verify()
    return {"files": written.files, "tensors": snapshot.layout.text}


def _finish(
    folder: Path, snapshot: StateSnapshot, shards: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Write the manifest; return the record of a checkpoint that can be loaded.

    Raises:
        CorruptCheckpointError: it could not be loaded.
    """
    files = {name: FileDigest(*file) for each in shards for name, file in each["files"].items()}
    tensors = merge_tensors([each["tensors"] for each in shards])
    with CheckpointFiles(folder) as written:
        written.write(MANIFEST, [manifest_text(snapshot.step, files, tensors).encode()])
        written.sync()
        written.verify()
    return _check_loadable(folder, snapshot, tensors)


def merge_tensors(texts: Sequence[str]) -> str:
    """Return the manifest's text about tensors from the texts of all ranks.

    Raises:
        CheckpointError: ranks disagree about a tensor.
    """
    if len(texts) == 1:
        return texts[0]
    merged: dict[str, dict[str, Any]] = {}
    for rank, text in enumerate(texts):
        for kind, entries in json.loads(text).items():
            known = merged.setdefault(kind, {})
            for name, entry in entries.items():
                first = known.setdefault(name, {**entry, "slices": []})
                if (first["dtype"], first["shape"]) != (entry["dtype"], entry["shape"]):
                    raise CheckpointError(
                        f"rank {rank} has {name} as {entry['dtype']} of {entry['shape']}, and "
                        f"another rank as {first['dtype']} of {first['shape']}"
                    )
                first["slices"] += entry["slices"]
    return dumps(merged)


def _check_loadable(folder: Path, snapshot: StateSnapshot, tensors: str) -> Mapping[str, Any]:
    """Return the record as it would be loaded.

    What passed in the save before is not checked again: then only the engine's numbers are new.

    Raises:
        CorruptCheckpointError: loading would reject it.
    """
    layout = snapshot.layout
    if layout.checked == (snapshot.others, tensors):
        with suppress(ValueError):  # the full check below words the error
            numbers = as_numbers(snapshot.numbers)
            check_numbers(numbers)
            return numbers
    record = parse_state_json(folder, snapshot.record, snapshot.step)
    if layout.checked is None or layout.checked[1] != tensors:
        check_readable(folder, record)
    layout.checked = (snapshot.others, tensors)
    return record


def publish(temporary: Path, final: Path) -> None:
    """Rename the temporary folder to its final name; an existing one is replaced."""
    old: Path | None = None
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        old = _replace(final, temporary)
    fsync(final.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _replace(final: Path, temporary: Path) -> Path:
    """Rename a folder to a name that exists; return where the previous one was moved to."""
    old = temp_name(final, "old")
    final.rename(old)
    try:
        temporary.rename(final)
    except OSError:
        old.rename(final)
        raise
    return old
