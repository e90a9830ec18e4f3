"""Targets that the user has typed on this machine: the mirror of a run, the database of a study.

A run folder or a study that was received names its targets too, so its own word proves nothing. The
record is in the folder of the user's state, which ranks and requeued jobs share if they share the
home folder. Where it is lost or cannot be written, the target is typed once more.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path


def remember_target(owner: str, target: str) -> None:
    """Record that the user typed a target: an address or a URL, for the id of a run or a study."""
    path = _locate(owner, target)
    if path is not None:
        with suppress(OSError):  # the run works; to resume it, the target is typed again
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch()


def was_typed(owner: str, target: str) -> bool:
    """Return whether the user typed a target on this machine for the id of a run or a study."""
    path = _locate(owner, target)
    return path is not None and path.is_file()


def _locate(owner: str, target: str) -> Path | None:
    """Return the file that records a target; None if the user has no home folder."""
    base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    with suppress(RuntimeError):
        base = base.expanduser()
    if not base.is_absolute():  # a folder that was received could have a record of its own
        return None
    digest = hashlib.sha256(json.dumps([owner, target]).encode()).hexdigest()[:32]
    return base / "surestep" / "targets" / digest
