"""The recorder of a rank that is not the first, which writes for all of them.

Of a checkpoint it writes its part, where the ranks share the state.
"""

from pathlib import Path
from typing import Any

from surestep.engine.log_point import LogPoint, Skip
from surestep.engine.parallel.world import ALONE, World
from surestep.engine.plan import Plan
from surestep.engine.state import State
from surestep.record.checkpoint.parts import is_shared
from surestep.record.checkpoint.saver import Outcome, Saver
from surestep.record.recorder import Recorder


class Follower(Recorder):
    """Stands where a Recorder stands, and writes nothing but parts of checkpoints."""

    def __init__(self, folder: Path, world: World = ALONE) -> None:
        self.folder = folder
        self.world = world
        self._saver = None
        self.checkpoints = folder / "checkpoints"
        self.known = False
        self._newest = None
        self.told = []

    def status(self, status: str, **more: Any) -> None:
        """Write nothing."""

    def event(self, kind: str, **fields: Any) -> None:
        """Write nothing."""

    def steps(self, point: LogPoint) -> None:
        """Write nothing."""

    def skipped(self, skip: Skip, samples: list[int] | None) -> None:
        """Write nothing."""

    def write_skipped(self) -> None:
        """Write nothing."""

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write nothing; return where the first rank writes it."""
        return self.folder / name

    def notice(self) -> str | None:
        """Have nothing to tell."""
        return None

    def save(self, state: State, plan: Plan) -> None:
        """Write this rank's part of a checkpoint, where the ranks share the state."""
        if not is_shared(state):
            return
        if self._saver is None:
            self._saver = Saver(
                self.checkpoints,
                lambda _: None,
                background=plan.checkpoint_async_save,
                world=self.world,
            )
        self._saver.save(state)

    def saved(self, *, wait: bool = False) -> list[Outcome]:
        """Return nothing: what came of a save is the first rank's to say."""
        if self._saver is not None:
            if wait:
                self._saver.wait()
            self._saver.outcomes()
        return []

    def drop_from(self, step: int) -> None:
        """Delete nothing."""

    def close(self) -> None:
        """Wait for what this rank writes."""
        self.saved(wait=True)

    def discard(self) -> None:
        """Wait for what this rank writes."""
        self.close()
