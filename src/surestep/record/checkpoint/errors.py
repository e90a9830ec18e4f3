"""The errors of a checkpoint that cannot be read: corrupted, gone, or not accessible."""

import errno
import os
from pathlib import Path

from surestep.base.errors import CheckpointError, CorruptCheckpointError

# Errors of files that are lost or broken. Others may pass (too many open files) or be corrected
# (a missing permission), so they are not a reason to resume from an older checkpoint.
_LOST = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.ENXIO}
    | {getattr(errno, "EUCLEAN", errno.EIO)}
)
_NO_MEMORY = ("Cannot allocate memory", "DefaultCPUAllocator")  # of torch and safetensors
_MAX_SHOWN = 300  # characters of a file that a message shows


class CheckpointVanishedError(CheckpointError):
    """A checkpoint was deleted while it was read."""


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, means that the host has no memory left."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return any(text in str(error) for text in _NO_MEMORY) or lacks_memory(error.__cause__)


def checkpoint_error(path: Path, file: str, what: object) -> CheckpointError:
    """Return the error for a checkpoint with a bad file.

    Args:
        path: of the checkpoint.
        file: its name.
        what: is wrong with it: text, or an exception.
    """
    if isinstance(what, BaseException) and lacks_memory(what):
        return CheckpointError(
            f"{path} cannot be read: {file}: there is not enough memory for it. Free some, or "
            "raise the limit of this process (ulimit -v, or that of the job), and try again."
        )
    lost = isinstance(what, FileNotFoundError)  # that of safetensors has no errno
    if isinstance(what, OSError) and not lost and what.errno not in _LOST:
        return CheckpointError(f"{path} cannot be read: {file}: {what.strerror or what}.")
    if not os.path.isdir(path):
        return CheckpointVanishedError(f"{path} is not there: it was deleted or moved.")
    text = str((what.strerror or what) if isinstance(what, OSError) else what)
    text = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return CorruptCheckpointError(f"{path} is damaged: {file}: {plain}.")
