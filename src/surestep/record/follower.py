"""The recorder of a rank that writes nothing: the first rank writes for all of them."""

from pathlib import Path
from typing import Any

from surestep.engine.log_point import LogPoint, Skip
from surestep.engine.plan import Plan
from surestep.engine.state import State
from surestep.record.checkpoint.saver import Outcome
from surestep.record.recorder import Recorder


class Follower(Recorder):
    """Stands where a Recorder stands, and writes nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
        """Write nothing."""

    def saved(self, *, wait: bool = False) -> list[Outcome]:
        """Return nothing: what came of a save is the first rank's to say."""
        return []

    def drop_from(self, step: int) -> None:
        """Delete nothing."""

    def close(self) -> None:
        """Let nothing go."""

    def discard(self) -> None:
        """Let nothing go."""
