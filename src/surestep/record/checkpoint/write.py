"""Write a checkpoint: a temporary folder, synced and read back, then one rename."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError
from surestep.engine.state import State
from surestep.record.checkpoint.faults import lacks_memory
from surestep.record.checkpoint.listing import Saved, described, taken
from surestep.record.checkpoint.manifest import MANIFEST, RECORD, manifest_text
from surestep.record.checkpoint.opened import check_readable
from surestep.record.checkpoint.record import as_numbers, check_numbers
from surestep.record.checkpoint.snapshot import Snapshot, Staging
from surestep.record.checkpoint.written import Written
from surestep.record.files import disk_hint, sync
from surestep.record.leftovers import TAKEN, half_done


def save_checkpoint(folder: Path, state: State, *, cycle: int | None = None) -> Path:
    """Write the state as `folder/step-XXXXXXXX`; return its path.

    Args:
        folder: of the checkpoints.
        state: what is saved.
        cycle: the cycle of the schedule that ended here, from 1, so that it is kept.

    Raises:
        CheckpointError: the disk is full or cannot be written, or a part has no plain form.
    """
    return write_checkpoint(folder, Staging().take(state, cycle=cycle)).path


def write_checkpoint(folder: Path, snapshot: Snapshot) -> Saved:
    """Write a snapshot as `folder/step-XXXXXXXX`; return what it says of itself.

    It has its name only after every byte was synced and read back.

    Raises:
        CheckpointError: the disk is full, cannot be written, or gives back other bytes.
    """
    final = folder / f"step-{snapshot.step:08d}"
    temporary = half_done(final, "tmp")
    try:
        make(temporary)
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
            f"are as they were. {disk_hint(error)}"
        ) from error
    return described(final, record)


def make(temporary: Path) -> None:
    """Make the folder that the files are written into, in place of what is left of one."""
    try:
        temporary.mkdir()
    except FileNotFoundError:
        temporary.parent.mkdir(exist_ok=True)  # its parent is there, or a mount has vanished
        temporary.mkdir()
    except FileExistsError:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()


def _write(folder: Path, snapshot: Snapshot) -> None:
    """Write the files, the manifest last; sync them and read them back."""
    with Written(folder) as written:
        written.write(RECORD, [snapshot.record])
        for file, block in snapshot.layout.blocks.items():
            written.write(file, block.parts)
        text = manifest_text(snapshot.step, written.files, snapshot.layout.text)
        written.write(MANIFEST, [text.encode()])
        written.sync()
        written.check()


def _taken(folder: Path, snapshot: Snapshot) -> Mapping[str, Any]:
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
    record = taken(folder, snapshot.record, snapshot.step)
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
    sync(final.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _in_place_of(final: Path, temporary: Path) -> Path:
    """Give a folder a name that is taken; return where the one that bore it lies now."""
    old = half_done(final, "old")
    final.rename(old)
    try:
        temporary.rename(final)
    except OSError:
        old.rename(final)
        raise
    return old
