"""What a child is doing, reported to its parent in shared memory and through a pipe.

A save is recognized by what it does in the folder of checkpoints and not by who does it, so that a
save by another thread, or by other code, is recognized as well. It begins where a temporary folder
is made, and ends where the folder of checkpoints is synced after the rename.
"""

import contextlib
import mmap
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from surestep import Callback
from surestep.trainer.session import Session
from tests.torture.recipe import STEPS_PER_EPOCH, accuracy

NAMES = ("start", "step", "boundary", "evaluation", "end")
_LAYOUT = struct.Struct("BBHI")  # the phase, whether a save is in progress, saves started, the step
# Python's audit hooks report each of these before it happens.
_MOMENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate")
_IN_A_FOLDER = ("os.remove", "os.rmdir")  # their second argument may be the descriptor of a folder


@dataclass(frozen=True)
class Slow:
    """The occurrence of a phase that pauses prolong, so that a kill can hit it."""

    phase: str = ""
    count: int = 0
    pause_s: float = 0.002


@dataclass(frozen=True)
class Deadly:
    """When a save kills itself: before its k-th call, or when a file exceeds some bytes.

    Without a kill, a file that exceeds its bytes is an error, as on a full disk.
    """

    save: int = 0
    call: int | None = None
    file_bytes: int | None = None
    kills: bool = True


class Phases:
    """Reports the phases of a child to its parent.

    Args:
        shared: memory that the parent reads after the kill.
        pipe: each phase is written here when it starts.
        checkpoints: the folder of checkpoints, as text.
        slow: the phase to prolong.
        deadly: the moment at which the child kills itself.
    """

    def __init__(
        self,
        shared: mmap.mmap,
        pipe: int,
        checkpoints: str,
        *,
        slow: Slow | None = None,
        deadly: Deadly | None = None,
    ) -> None:
        self._shared, self._pipe, self._checkpoints = shared, pipe, checkpoints
        self._slow, self._deadly = slow or Slow(), deadly or Deadly()
        self._count = dict.fromkeys((*NAMES, "save"), 0)
        self._phase, self._saving, self._published, self.step = 0, False, False, 0
        self._calls = 0

    def enter(self, phase: str) -> None:
        """Report the start of a phase."""
        self._phase = NAMES.index(phase)
        self._tell(phase)

    def pause(self, phase: str) -> None:
        """Prolong the phase, if it is the one to be hit."""
        if self._slow.phase == phase and self._slow.count == self._count[phase]:
            time.sleep(self._slow.pause_s)

    def watch(self) -> None:
        """Report files, syncs and evaluations from now on; this cannot be undone."""
        sys.addaudithook(self._audit)
        own_sync, own_evaluate = os.fsync, Session.evaluate

        def fsync(descriptor: Any) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path.startswith(self._checkpoints):
                self._moment()
            own_sync(descriptor)
            if self._published and path == self._checkpoints:
                self._saving = self._published = False
                self._write()

        def evaluate(session: Session, *args: Any) -> Any:
            before = self._phase
            self.enter("evaluation")
            try:
                return own_evaluate(session, *args)
            finally:
                self._phase = before
                self._write()

        os.fsync = fsync
        Session.evaluate = evaluate  # type: ignore[method-assign]

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _MOMENTS or not args or not isinstance(args[0], (str, os.PathLike)):
            return
        path = os.fspath(args[0])
        if event in _IN_A_FOLDER and args[1] >= 0:
            path = f"{os.readlink(f'/proc/self/fd/{args[1]}')}/{path}"
        if not path.startswith(self._checkpoints + "/"):
            return
        name = path[len(self._checkpoints) + 1 :]
        if event == "os.mkdir" and name.startswith(".tmp-"):
            self._saving = True
            self._calls = 0
            self._tell("save")
            self._arm()
        self._moment()
        if event == "os.rename" and name.startswith(".tmp-") and "/" not in name:
            self._published = True

    def _arm(self) -> None:
        """Make the kernel kill this process within a write."""
        limit = self._deadly.file_bytes
        if limit is not None and self._count["save"] == self._deadly.save:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def _moment(self) -> None:
        self.pause("save")
        if self._deadly.call is None or self._count["save"] != self._deadly.save:
            return
        self._calls += 1
        if self._calls == self._deadly.call:
            os.kill(os.getpid(), signal.SIGKILL)

    def _tell(self, phase: str) -> None:
        self._count[phase] += 1
        self._write()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, f"{phase} {self._count[phase]}\n".encode())

    def _write(self) -> None:
        saving = (self._phase, self._saving, self._count["save"], self.step)
        _LAYOUT.pack_into(self._shared, 0, *saving)


def hit(shared: mmap.mmap) -> Mapping[str, Any]:
    """Return the phase in which a child died, and whether a save was in progress."""
    phase, saving, saves, step = _LAYOUT.unpack_from(shared, 0)
    return {"phase": NAMES[phase], "in_save": bool(saving), "saves": saves, "step": step}


class Watch(Callback):
    """Reports the phases that a callback sees."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases

    def on_batch(self, state: Any, batch: Any) -> None:
        self.phases.pause("boundary")
        self.phases.enter("step")
        self.phases.pause("step")

    def on_backward(self, state: Any) -> None:
        self.phases.pause("step")

    def on_step(self, state: Any, result: Any) -> None:
        self.phases.step = result.step
        if result.step % STEPS_PER_EPOCH == 0:
            self.phases.enter("boundary")
            self.phases.pause("boundary")
        else:
            self.phases.pause("step")


def slow_accuracy(phases: Phases) -> Callable[[Any, Any], Any]:
    """Return a metric that prolongs an evaluation."""

    def metric(logits: Any, targets: Any) -> Any:
        phases.pause("evaluation")
        return accuracy(logits, targets)

    return metric
