"""A Run, as everybody reads it: config, events, best and last checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from surestep.base.errors import CheckpointError, ConfigError, RunError, near
from surestep.record.checkpoint.keep import best_first, cycle_checkpoints
from surestep.record.checkpoint.listing import Saved, list_checkpoints, saved, step_of
from surestep.record.checkpoint.read import load_model
from surestep.record.events import read_events
from surestep.record.files import read_json
from surestep.record.skipped import Skipped, gather

Which = Literal["best", "last", "average"]


@dataclass(frozen=True)
class Run:
    """A run folder, to read from."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # text is as good
        if not (self.path / "config.json").exists():
            raise RunError(f"{self.path} is no run folder: it has no config.json.")

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def config(self) -> dict[str, Any]:
        """What was asked: options by full name, and the recipe with its parameters."""
        return dict(read_json(self.path / "config.json"))

    @property
    def status(self) -> dict[str, Any]:
        """How the run ended, or that it has not."""
        return dict(read_json(self.path / "status.json"))

    @property
    def last(self) -> Saved | None:
        """The newest checkpoint, or None."""
        found = list_checkpoints(self.checkpoints)
        return saved(found[-1]) if found else None

    @property
    def best(self) -> Saved | None:
        """The best checkpoint by validation.metric; the newest where nothing was measured."""
        judged = self.status.get("judged_by")
        ranked = best_first(list_checkpoints(self.checkpoints), *judged) if judged else []
        return ranked[0] if ranked else self.last

    @property
    def cycles(self) -> list[Saved]:
        """The checkpoints at the ends of the schedule's cycles, for an ensemble of snapshots."""
        return cycle_checkpoints(list_checkpoints(self.checkpoints))

    @property
    def skipped(self) -> Skipped:
        """The steps that moved nothing, and the samples in them."""
        return gather(self.events())

    def load_model(self, model: nn.Module, which: Which | int = "best") -> Saved:
        """Load the weights of a checkpoint into `model`; return which it was.

        Args:
            model: of the same build.
            which: "best" loads what was measured, the weights or their average; "last" the
                newest weights; "average" the newest average; a number the weights of that step.

        Raises:
            ConfigError: none of those.
            CheckpointError: there is none, or it does not fit.
        """
        found = self.saved(which)
        average = which == "average" or (which == "best" and found.measured == "average")
        load_model(found.path, model, average=average)
        return found

    def saved(self, which: Which | int) -> Saved:
        """Return the best checkpoint, the last, which holds the newest average too, or a step's.

        Raises:
            ConfigError: none of those.
            CheckpointError: there is none, and of which steps there are.
        """
        if isinstance(which, int):
            return self._at(which)
        if which not in get_args(Which):
            raise ConfigError(f"which={which!r} is not known. {near(which, get_args(Which))}")
        found = self.best if which == "best" else self.last
        if found is None:
            raise CheckpointError(f"{self.path} has no checkpoint yet.")
        if which == "average" and not found.has_average:
            raise CheckpointError(
                f"{found.path} has no averaged weights. Train with average.kind='ema' or 'swa', or "
                "load which='best' or 'last'."
            )
        return found

    def _at(self, step: int) -> Saved:
        found = {step_of(path): path for path in list_checkpoints(self.checkpoints)}
        if step not in found:
            there = ", ".join(map(str, found)) or "none"
            raise CheckpointError(f"{self.path} has no checkpoint of step {step}. It has: {there}.")
        return saved(found[step])

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what happened, in order."""
        return read_events(self.path / "events.jsonl")
