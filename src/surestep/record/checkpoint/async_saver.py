"""Saving: the State is copied at once, and the copy is written while training goes on.

The thread that writes may meet a fork: data workers start whenever they are needed. So it holds
nothing that a forked process could miss or write twice: no file with a buffer, no lock, no import,
no parallel region of torch. It draws no random number.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.state.state import State
from surestep.record.checkpoint.staging import SnapshotStager, StateSnapshot
from surestep.record.checkpoint.state_json import CheckpointInfo
from surestep.record.checkpoint.writer import snapshot_all_ranks, write_checkpoint


@dataclass(frozen=True)
class SaveResult:
    """What came of a save.

    Attributes:
        step: of the State.
        path: of the checkpoint; None where it could not be written.
        error: why it could not be written, or why others could not be deleted after it.
        seconds: how long it took to write.
        waited_s: how long training waited for it.
    """

    step: int
    path: Path | None
    error: Exception | None
    seconds: float
    blocked_s: float


class AsyncSaver:
    """Writes checkpoints one after another.

    Args:
        folder: of the checkpoints.
        tidy: called with each that was written: deletes those that need not stay.
        background: write in a thread.
        world: the ranks that write together, each from a Saver of its own; one alone writes all.
    """

    def __init__(
        self,
        folder: Path,
        tidy: Callable[[CheckpointInfo], object],
        *,
        background: bool,
        world: Communicator = ALONE,
    ) -> None:
        self.folder = folder
        self.tidy = tidy
        self.background = background
        self.world = world
        self._staging = SnapshotStager(world.rank, world.size)
        self._thread: threading.Thread | None = None
        self._done: list[SaveResult] = []

    def save(self, state: State, *, cycle: int | None = None) -> None:
        """Copy the state and begin to write it; waits for the one before.

        Args:
            state: what is saved; waits for its device.
            cycle: the cycle of the schedule that ended here, from 1, so that it is kept.

        Raises:
            CheckpointError: a part has no plain form.
        """
        start = time.perf_counter()
        self.wait()  # its buffers are the ones to copy into
        snapshot = snapshot_all_ranks(lambda: self._staging.take(state, cycle=cycle), self.world)
        if not self.background:
            self._write(snapshot, start, start)
            return
        # No daemon: an interpreter that exits waits for it.
        self._thread = threading.Thread(
            target=self._write,
            args=(snapshot, start, time.perf_counter()),
            name="surestep-save",
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            if self._thread.ident is not None:
                self._thread.join()
            self._thread = None

    def outcomes(self) -> list[SaveResult]:
        """Return what came of the saves that are done, each once."""
        done = []
        while self._done:
            done.append(self._done.pop(0))
        return done

    def _write(self, snapshot: StateSnapshot, start: float, copied: float) -> None:
        path: Path | None = None
        failed: Exception | None = None
        try:
            saved = write_checkpoint(self.folder, snapshot, self.world.background)
            path = saved.path
            self.tidy(saved)
        except OSError as error:
            failed = CheckpointError(
                f"{error.filename or self.folder} could not be deleted: {error.strerror or error}."
            )
        except Exception as error:
            failed = error
        end = time.perf_counter()
        waited = (copied if self.background else end) - start
        self._done.append(SaveResult(snapshot.step, path, failed, end - start, waited))
