"""Write a checkpoint: every rank writes, syncs and reads back its files; rank 0 publishes them.

The files go into a temporary folder, the manifest last. The folder gets its name only after every
byte was synced and read back. One process is a world of one rank.
Each file is opened once for all three. Every system call of the writing thread interrupts training,
because both threads share Python's lock.

`AsyncSaver` writes in a thread. Data workers may be forked at any time, so the thread has nothing
that a forked process could miss or write twice: no buffered file, no lock, no import, no parallel
region of torch.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError, ParallelError
from surestep.base.files import fsync, publish, temp_name
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.state.state import State
from surestep.record.checkpoint.discovery import checkpoint_name
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    RECORD,
    checkpoint_error,
    lacks_memory,
    manifest_text,
    read_manifest,
)
from surestep.record.checkpoint.reader import check_readable, parse_state_json
from surestep.record.checkpoint.staging import SnapshotStager, StateSnapshot
from surestep.record.io import dumps, os_error_hint
from surestep.record.safetensors_writer import FileDigest, write_into

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
        """Write buffers as a new file, whose writeback starts while the next file is hashed."""
        self._open[name] = os.open(f"{self.folder}/{name}", _NEW, 0o666)
        self.files[name] = write_into(self._open[name], parts)
        _drop_cache(self._open[name])

    def sync(self) -> None:
        """Make the files, and then their names, survive a power cut."""
        for descriptor in self._open.values():
            os.fsync(descriptor)
        fsync(self.folder)

    def verify(self) -> None:
        """Read the files from the disk, not the page cache, and compare them with their hashes."""
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


def write_checkpoint(folder: Path, snapshot: StateSnapshot, world: Communicator = ALONE) -> Path:
    """Write a snapshot as `folder/step-XXXXXXXX`; return that path.

    All ranks call this, and all of them return or all raise.

    Args:
        folder: of the checkpoints, which all ranks see.
        snapshot: what this rank writes.
        world: the ranks, over a process group that nothing else uses meanwhile.

    Raises:
        CheckpointError: on one rank the disk is full, not writable, or returns different bytes than
            were written; or a rank is gone.
    """
    final = folder / checkpoint_name(snapshot.step)
    temporary = temp_name(final, "tmp")  # rank 0's name, which it sends to the others

    def run(act: Callable[[], Any], *, first_only: bool = False) -> list[Any]:
        return _run_on_all(world, final, act if world.is_first or not first_only else lambda: None)

    def finish() -> None:
        _finish(temporary, snapshot, written)
        publish(temporary, final)

    try:
        names = run(lambda: _make_temp_dir(temporary), first_only=True)
        temporary = final.with_name(names[0])
        written = run(lambda: _write_shard(temporary, snapshot, record=world.is_first))
        run(finish, first_only=True)
    except BaseException:
        if world.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def _run_on_all(world: Communicator, final: Path, act: Callable[[], Any]) -> list[Any]:
    """Run a function on every rank; return the results of all, or raise the same error on all."""
    cause: BaseException | None = None
    try:
        answer = {"result": act()}
    except BaseException as error:
        cause, answer = error, _describe_failure(error)
    answers = [answer] if world.size == 1 else _gather(world, final, answer)
    expected = isinstance(cause, (OSError, CheckpointError)) or lacks_memory(cause)
    if cause is not None and not expected:
        raise cause
    failed = [f"rank {rank}: {a['failed']}" for rank, a in enumerate(answers) if "failed" in a]
    if not failed:
        return [answer["result"] for answer in answers]
    if world.size == 1:
        if isinstance(cause, CheckpointError) and not lacks_memory(cause):
            raise cause
        failed = [answer["failed"]]
    hint = next((answer["hint"] for answer in answers if answer.get("hint")), "")
    raise CheckpointError(
        f"{final} could not be written: {'; '.join(failed[:_MAX_SHOWN])}. Earlier checkpoints are "
        f"unchanged. {hint}".rstrip()
    ) from cause


def _describe_failure(error: BaseException) -> dict[str, Any]:
    if lacks_memory(error):
        hint = "Free some memory, or raise the limit."
        return {"failed": "there is not enough memory", "hint": hint}
    if isinstance(error, OSError):
        return {"failed": error.strerror or str(error), "hint": os_error_hint(error)}
    return {"failed": str(error) if isinstance(error, CheckpointError) else repr(error)}


def _gather(world: Communicator, final: Path, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [json.loads(text) for text in world.all_gather_text(json.dumps(answer))]
    except (RuntimeError, ParallelError) as error:  # what torch raises if a rank is missing
        raise CheckpointError(
            f"{final} could not be written: not every rank answered: {error}. Earlier checkpoints "
            "are unchanged."
        ) from error


def _make_temp_dir(temporary: Path) -> str:
    """Create the folder that the files are written into, without stale content; return its name."""
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.parent.mkdir(exist_ok=True)  # not parents=True: a missing run folder is an error
    temporary.mkdir()
    return temporary.name


def _write_shard(folder: Path, snapshot: StateSnapshot, *, record: bool) -> dict[str, Any]:
    """Write, sync and read back the files of this rank; return what the manifest needs of them."""
    with CheckpointFiles(folder) as written:
        if record:
            written.write(RECORD, [snapshot.record])
        for name, file in snapshot.layout.files.items():
            written.write(name, file.parts)
        written.sync()
        written.verify()
    return {"files": written.files, "tensors": snapshot.layout.text}


def _finish(folder: Path, snapshot: StateSnapshot, shards: Sequence[Mapping[str, Any]]) -> None:
    """Write the manifest, and check that the checkpoint can be loaded."""
    files = {name: FileDigest(*file) for shard in shards for name, file in shard["files"].items()}
    tensors = _merge_tensors([shard["tensors"] for shard in shards])
    with CheckpointFiles(folder) as written:
        written.write(MANIFEST, [manifest_text(snapshot.step, files, tensors).encode()])
        written.sync()
        written.verify()
    parse_state_json(folder, snapshot.record, snapshot.step)
    if snapshot.layout.readable != tensors:  # the headers may have changed
        check_readable(folder, read_manifest(folder))
        snapshot.layout.readable = tensors


def _merge_tensors(texts: Sequence[str]) -> str:
    """Return the manifest's text about tensors from the texts of all ranks, which must agree."""
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


@dataclass(frozen=True)
class SaveResult:
    """The result of a save.

    Attributes:
        step: of the State.
        path: of the checkpoint; None if it could not be written.
        error: why it could not be written, or why older ones could not be deleted after it.
        seconds: how long the save took.
        blocked_s: how long training waited for it.
        notice: that this save and later ones are not written in a thread, and why; else "".
    """

    step: int
    path: Path | None
    error: Exception | None
    seconds: float
    blocked_s: float
    notice: str = ""


class AsyncSaver:
    """Writes checkpoints one after another.

    Args:
        folder: of the checkpoints.
        prune: deletes older ones; called after each that was written.
        background: write in a thread.
        world: the ranks that write together, each with its own saver.
    """

    def __init__(
        self,
        folder: Path,
        prune: Callable[[], object],
        *,
        background: bool,
        world: Communicator = ALONE,
    ) -> None:
        self.folder = folder
        self.prune = prune
        self.background = background
        self.world = world
        self._staging = SnapshotStager(world.rank, world.size)
        self._thread: threading.Thread | None = None
        self._done: list[SaveResult] = []

    def save(self, state: State, *, cycle: int | None = None) -> None:
        """Copy the state and start to write it; waits for the previous save.

        Args:
            state: what is saved; waits for its device.
            cycle: the cycle of the schedule that ended here, from 1; such checkpoints are kept.
        """
        start = time.perf_counter()
        self.wait()  # the previous save is using the buffers
        try:
            snapshot = self._staging.take(state, cycle=cycle)
        except CheckpointError as error:
            self.world.all_gather_text(str(error))
            raise
        for rank, text in enumerate(self.world.all_gather_text("")):
            if text:
                raise CheckpointError(f"Rank {rank} cannot be saved: {text}")
        if not self.background:
            self._write(snapshot, start, None)
            return
        # Not a daemon: an interpreter that exits waits for it.
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, start, time.perf_counter()), name="surestep-save"
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # no memory for its stack, or too many processes
            self.background = False
            self._write(snapshot, start, None, why_not_threaded=str(error))

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            if self._thread.ident is not None:
                self._thread.join()
            self._thread = None

    def outcomes(self) -> list[SaveResult]:
        """Return the results of the saves that are done, each once."""
        return [self._done.pop(0) for _ in range(len(self._done))]

    def _write(
        self,
        snapshot: StateSnapshot,
        start: float,
        copied: float | None,
        why_not_threaded: str = "",
    ) -> None:
        path: Path | None = None
        failed: Exception | None = None
        notice = ""
        try:
            notice = self._describe_waiting(snapshot.step, why_not_threaded)
            path = write_checkpoint(self.folder, snapshot, self.world.background)
            self.prune()
        except OSError as error:
            failed = CheckpointError(
                f"{error.filename or self.folder} could not be deleted: {error.strerror or error}."
            )
        except Exception as error:
            failed = error
        end = time.perf_counter()
        blocked_s = (copied or end) - start
        result = SaveResult(snapshot.step, path, failed, end - start, blocked_s, notice)
        self._done.append(result)

    def _describe_waiting(self, step: int, why_not_threaded: str) -> str:
        """Return on which ranks training waits for this save and later ones, and why; or ""."""
        world, where = self.world.background, ""
        answers: list[dict[str, Any]] = [{"why": why_not_threaded}]
        if world.size > 1:
            answers = _gather(world, self.folder / checkpoint_name(step), answers[0])
        reasons = {rank: answer["why"] for rank, answer in enumerate(answers) if answer["why"]}
        if not reasons:
            return ""
        if world.size > 1:
            where = f" on the ranks {list(reasons)}"
        return (
            f"Checkpoints are written between two steps from step {step} on, since their thread "
            f"could not be started{where}: {next(iter(reasons.values()))}. Training waits for them."
        )
