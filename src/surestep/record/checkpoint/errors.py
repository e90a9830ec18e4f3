"""What a checkpoint is refused with that cannot be read: it is damaged, gone, or kept from us."""

import errno
import os
from pathlib import Path

from surestep.base.errors import CheckpointError, CorruptCheckpointError

# What a disk says of files that are lost or broken. The rest may pass (too many open files) or be
# mended (a right that is missing), and is no reason to take an older checkpoint.
_LOST = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.ENXIO}
    | {getattr(errno, "EUCLEAN", errno.EIO)}
)
_NO_MEMORY = ("Cannot allocate memory", "DefaultCPUAllocator")  # as torch and safetensors say it
_MOST = 300  # characters of what was read that a message shows


class CheckpointVanishedError(CheckpointError):
    """A checkpoint was deleted by somebody while it was read."""


def lacks_memory(error: BaseException | None) -> bool:
    """Say whether an error, or what it came from, means that there was no memory for the host."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return any(each in str(error) for each in _NO_MEMORY) or lacks_memory(error.__cause__)


def checkpoint_error(path: Path, file: str, what: object) -> CheckpointError:
    """Return what to raise for a checkpoint whose `file` is not what it must be.

    Args:
        path: of the checkpoint.
        file: where it shows.
        what: is wrong with it: words, or the error met.
    """
    if isinstance(what, BaseException) and lacks_memory(what):
        return CheckpointError(
            f"{path} cannot be read: {file}: there is not enough memory for it. Free some, or "
            "raise the limit of this process (ulimit -v, or that of the job), and try again."
        )
    lost = isinstance(what, FileNotFoundError)  # of safetensors' it has no number
    if isinstance(what, OSError) and not lost and what.errno not in _LOST:
        return CheckpointError(f"{path} cannot be read: {file}: {what.strerror or what}.")
    if not os.path.isdir(path):
        return CheckpointVanishedError(f"{path} is not there: it was deleted or moved.")
    said = str((what.strerror or what) if isinstance(what, OSError) else what)
    said = said if len(said) <= _MOST else f"{said[:_MOST]}..."
    plain = "".join(each if each.isprintable() else "?" for each in said)
    return CorruptCheckpointError(f"{path} is damaged: {file}: {plain}.")
