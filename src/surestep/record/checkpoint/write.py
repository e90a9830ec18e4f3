"""Write a checkpoint: a temporary folder, synced and read back, then one rename."""

import shutil
from pathlib import Path

from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.state import State
from surestep.record.checkpoint.manifest import MANIFEST, RECORD, Manifest, Slice, Stored, verify
from surestep.record.checkpoint.opened import check_readable
from surestep.record.checkpoint.snapshot import Snapshot, Staging
from surestep.record.checkpoint.tensors import name_of, write_tensors, write_text
from surestep.record.files import disk_hint, sync
from surestep.record.leftovers import half_done


def save_checkpoint(folder: Path, state: State, *, cycle: int | None = None) -> Path:
    """Write the state as `folder/step-XXXXXXXX`; return its path.

    Args:
        folder: of the checkpoints.
        state: what is saved.
        cycle: the cycle of the schedule that ended here, from 1, so that it is kept.

    Raises:
        CheckpointError: the disk is full or cannot be written, or a part has no plain form.
    """
    return write_checkpoint(folder, Staging().take(state, cycle=cycle))


def write_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot as `folder/step-XXXXXXXX`; return its path.

    It has its name only after every byte was synced and read back.

    Raises:
        CheckpointError: the disk is full, cannot be written, or gives back other bytes.
    """
    final = folder / f"step-{snapshot.step:08d}"
    temporary = half_done(final, "tmp")
    try:
        folder.mkdir(exist_ok=True)  # its parent is there, or a mount has vanished
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _write(temporary, snapshot)
        check_readable(temporary, verify(temporary, fresh=True))
        _publish(temporary, final)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise CheckpointError(
            f"{final} could not be written: {error.strerror or error}. The checkpoints before it "
            f"are as they were. {disk_hint(error)}"
        ) from error
    return final


def _write(folder: Path, snapshot: Snapshot) -> None:
    files = {RECORD: write_text(folder / RECORD, snapshot.record)}
    tensors: dict[str, dict[str, Stored]] = {}
    for kind, named in snapshot.tensors.items():
        file = f"{kind}.safetensors"
        files[file] = write_tensors(folder / file, named)
        tensors[kind] = {name: _whole(name, each, file) for name, each in named.items()}
    for file in files:
        sync(folder / file)
    write_text(folder / MANIFEST, Manifest(snapshot.step, files, tensors).text())
    sync(folder / MANIFEST)
    sync(folder)


def _whole(name: str, tensor: Tensor, file: str) -> Stored:
    """Return a tensor that lies in one piece."""
    shape = tuple(tensor.shape)
    return Stored(
        name_of(name, tensor.dtype), shape, (Slice(file, tuple(0 for _ in shape), shape),)
    )


def _publish(temporary: Path, final: Path) -> None:
    """Give the folder its name; one that already bears it makes way until then."""
    old = half_done(final, "old")
    if final.exists():
        final.rename(old)
    try:
        temporary.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)
