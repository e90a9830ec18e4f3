"""A Run, as everybody reads it: config, events, best and last checkpoint."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from surestep.base.errors import (
    CheckpointError,
    ConfigError,
    CorruptCheckpointError,
    RunError,
    suggest_names,
)
from surestep.base.paths import require_local_path
from surestep.record.checkpoint.discovery import (
    TRIES,
    find_newest_valid,
    no_valid_checkpoint_message,
    scan_checkpoints,
)
from surestep.record.checkpoint.errors import CheckpointVanishedError
from surestep.record.checkpoint.inspect import InspectionResult, examine_all
from surestep.record.checkpoint.listing import CheckpointInfo, list_checkpoints, read_info, step_of
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.checkpoint.retention import best_first, cycle_checkpoints
from surestep.record.events import read_events
from surestep.record.io import read_json
from surestep.record.no_checkpoint import no_checkpoint_message
from surestep.record.run_schemas import CONFIG, status
from surestep.record.skipped_samples import SkippedSteps, summarize_skips

if TYPE_CHECKING:  # a run can be looked at without torch
    from torch import nn

    from surestep.engine.distributed.shards import ShardedStateProvider
    from surestep.record.checkpoint.verify import Check
    from surestep.record.export import ExportResult

Which = Literal["best", "last", "average"]
NO_SECOND = "Put a copy of it back, or take the newest that is good: which='last' (--which last)."
logger = logging.getLogger("surestep")


class SelectedWeights(NamedTuple):
    """A checkpoint that was verified, and which of its weights are meant."""

    saved: CheckpointInfo
    opened: CheckpointReader
    average: bool

    @property
    def leaves_out(self) -> bool:
        """Whether it lacks frozen parameters, which the model must have already."""
        return bool(self.opened.record.get("base"))

    def load(self, model: nn.Module, keeper: ShardedStateProvider | None = None) -> None:
        """Load the weights into a model, or to where a keeper has its parameters.

        Raises:
            CheckpointError: they do not fit.
        """
        from surestep.record.checkpoint.load import load_weights

        load_weights(self.opened, model, average=self.average, keeper=keeper)


@dataclass(frozen=True)
class Run:
    """A run folder, to read from."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", require_local_path(self.path))  # text is as good
        if not self.path.exists():
            raise RunError(f"There is no {self.path}. Look at the path: a run folder.")
        if not (self.path / "config.json").exists():
            raise RunError(
                f"{self.path} is no run folder: it has no config.json. Look at the path; if it was "
                "one, put a copy of that file back."
            )

    @property
    def name(self) -> str:
        """What the run is called: its folder's name."""
        return self.path.resolve().name

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def config(self) -> dict[str, Any]:
        """What was asked: options by full name, and the recipe with its parameters."""
        return dict(read_json(self.path / "config.json", CONFIG))

    @property
    def status(self) -> dict[str, Any]:
        """How the run ended, or that it has not."""
        newest = shlex.quote(f"{self.path}@last")
        branch = f"surestep train RECIPE --from {newest} --run NEW"
        hint = f"Put a copy of it back, or start a new run from its newest checkpoint: {branch}"
        return dict(read_json(self.path / "status.json", status, hint=hint))

    @property
    def judged_by(self) -> tuple[str, Literal["min", "max"]] | None:
        """The metric that tells the best checkpoint, and whether less or more of it is better."""
        judged = self.status.get("monitor")
        return None if judged is None else (judged[0], judged[1])

    @property
    def last(self) -> CheckpointInfo | None:
        """The newest checkpoint, or None; one that is seen to be damaged is told and left out."""
        found = scan_checkpoints(self.checkpoints)
        for each in found.newer_damaged():
            logger.warning("%s", each.reason)
        return found.good[-1] if found.good else None

    @property
    def best(self) -> CheckpointInfo | None:
        """The best checkpoint by validation.metric; the newest where nothing was measured.

        Raises:
            DamagedError: it is seen to be damaged, or what may be it; no other is the best.
        """
        judged = self.judged_by
        if judged is None:
            return self.last
        found = scan_checkpoints(self.checkpoints)
        ranked = best_first(found.good, *judged)
        for each in found.damaged if found.good else []:
            if each.step == found.good[-1].best_step or each in found.newer_damaged():
                raise CorruptCheckpointError(f"{each.reason} {NO_SECOND}")
        return ranked[0] if ranked else self.last

    @property
    def cycles(self) -> list[CheckpointInfo]:
        """The checkpoints at the ends of the schedule's cycles, for an ensemble of snapshots."""
        return cycle_checkpoints(scan_checkpoints(self.checkpoints).good)

    @property
    def skipped(self) -> SkippedSteps:
        """The steps that moved nothing, and the samples in them."""
        return summarize_skips(self.events())

    def load_model(self, model: nn.Module, which: Which | int = "best") -> CheckpointInfo:
        """Load the weights of a checkpoint into `model`; return which it was.

        Args:
            model: of the same build.
            which: "best" loads what was measured, the weights or their average; "last" the
                newest weights; "average" the newest average; a number the weights of that step.

        Raises:
            ConfigError: none of those.
            DamagedError: the best, or the step's, is damaged.
            CheckpointError: there is none, or none that is good, or it does not fit.
        """
        chosen = self.choose(which)
        chosen.load(model)
        return chosen.saved

    def choose(self, which: Which | int, *, check: Check | None = None) -> SelectedWeights:
        """Verify a checkpoint, every byte, and return it.

        In place of the last one, if it is damaged, comes the newest that is good, which is told.
        In place of the best, or of a step's, comes none.

        Args:
            which: as for load_model.
            check: compares the bytes, where other ranks help to.

        Raises:
            ConfigError: none of those.
            DamagedError: the best, or the step's, is damaged.
            CheckpointError: there is none, or none that is good.
        """
        if which not in ("last", "average"):
            return self._choose(which, check)
        self.saved(which)
        newest = find_newest_valid(self.checkpoints, check=check)
        for each in newest.passed_over:
            logger.warning("%s", each.reason)
        if newest.opened is None:
            raise CheckpointError(no_checkpoint_message(self.path))
        return SelectedWeights(newest.opened.saved, newest.opened, average=which == "average")

    def _choose(self, which: Which | int, check: Check | None) -> SelectedWeights:
        for _ in range(TRIES):
            found = self.saved(which)
            try:
                opened = open_checkpoint(found.path, check=check)
            except CheckpointVanishedError:
                continue
            except CorruptCheckpointError as error:
                raise CorruptCheckpointError(f"{error} {NO_SECOND}") from error
            return SelectedWeights(found, opened, which == "best" and found.evaluated == "average")
        raise CheckpointVanishedError(
            f"{self.checkpoints} loses its checkpoints faster than they can be read."
        )

    def saved(self, which: Which | int) -> CheckpointInfo:
        """Return the best checkpoint, the last, which holds the newest average too, or a step's.

        Raises:
            ConfigError: none of those.
            CheckpointError: there is none, and of which steps there are.
        """
        if isinstance(which, int):
            return read_info(self.folder_of(which))
        if which not in get_args(Which):
            raise ConfigError(
                f"which={which!r} is not known. {suggest_names(which, get_args(Which))}"
            )
        found = self.best if which == "best" else self.last
        if found is None:
            raise CheckpointError(
                no_valid_checkpoint_message(
                    self.checkpoints, scan_checkpoints(self.checkpoints).damaged
                )
            )
        if which == "average" and not found.has_average:
            raise CheckpointError(
                f"{found.path} has no averaged weights. Train with average.kind='ema' or 'swa', or "
                "load which='best' or 'last'."
            )
        return found

    def export(
        self,
        path: str | Path,
        which: Which | int = "best",
        *,
        average: bool = False,
        overwrite: bool = False,
    ) -> ExportResult:
        """Write the weights of a checkpoint as one file that plain PyTorch loads.

        Args:
            path: ends in .safetensors, or in .pt for a state dict.
            which: as for load_model.
            average: the averaged weights of that checkpoint.
            overwrite: replace a file that is there.

        Raises:
            ConfigError: another ending, no such folder, or a file is there already.
            CheckpointError: there is none, it is damaged or has no average, or the disk is full.
        """
        from surestep.record.export import check_out, export

        check_out(Path(path), overwrite=overwrite)
        chosen = self.choose(which)
        return export(
            chosen.opened,
            Path(path),
            run=self.name,
            average=average or chosen.average,
            overwrite=overwrite,
        )

    def verify(self) -> list[InspectionResult]:
        """Read every byte of each checkpoint, also of damaged ones that were put aside.

        Raises:
            CheckpointError: the folder of the checkpoints cannot be listed.
        """
        return examine_all(self.checkpoints, every_byte=True)

    def folder_of(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, which may be damaged.

        Raises:
            CheckpointError: there is none, and of which steps there are.
        """
        found = {step_of(path): path for path in list_checkpoints(self.checkpoints)}
        if step not in found:
            there = ", ".join(map(str, found)) or "none"
            raise CheckpointError(f"{self.path} has no checkpoint of step {step}. It has: {there}.")
        return found[step]

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what happened, in order."""
        return read_events(self.path / "events.jsonl")
