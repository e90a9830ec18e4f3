"""Read a run folder: config, status, events and checkpoints."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
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
from surestep.base.paths import FixedPath, require_local_path
from surestep.record.checkpoint.discovery import (
    TRIES,
    InspectionResult,
    examine_all,
    find_newest_valid,
    list_checkpoints,
    no_checkpoint_message,
    no_valid_checkpoint_message,
    scan_checkpoints,
    step_of,
)
from surestep.record.checkpoint.manifest import CheckpointVanishedError
from surestep.record.checkpoint.reader import (
    CheckpointInfo,
    CheckpointReader,
    open_checkpoint,
    read_info,
)
from surestep.record.checkpoint.retention import best_first, ends_of_cycles
from surestep.record.events import read_events
from surestep.record.io import check_output, read_json
from surestep.record.schemas import CONFIG, STATUS
from surestep.record.skipped_samples import SkippedSteps, summarize_skips

if TYPE_CHECKING:  # a run is read without torch
    from torch import nn

    from surestep.engine.distributed.shards import ShardedStateProvider
    from surestep.engine.losses.base import Loss
    from surestep.engine.modes import TrainModes
    from surestep.engine.state.state import State
    from surestep.record.export import ExportResult
    from surestep.record.history import History

Which = Literal["best", "last", "average"]
_NO_SECOND = "Put a copy of it back, or load the newest valid one: which='last' (--which last)."
logger = logging.getLogger("surestep")


class SelectedWeights(NamedTuple):
    """A verified checkpoint, and whether its weights or their average are selected."""

    saved: CheckpointInfo
    opened: CheckpointReader
    average: bool

    @property
    def needs_base(self) -> bool:
        """Whether frozen parameters are missing, which the model must have already."""
        return bool(self.opened.record["base"])

    def load(
        self,
        model: nn.Module,
        *,
        loss: Loss | None = None,
        keep_eval: Sequence[nn.Module] = (),
    ) -> None:
        """Load weights and buffers into a model that was built again, and buffers into its loss.

        Raises:
            CheckpointError: they are of another model.
        """
        from surestep.engine.losses.multi import code_of_losses
        from surestep.engine.losses.state import NAME, state_of_loss
        from surestep.engine.model.attribute_writes import AttributeWrites
        from surestep.engine.modes import use_train_modes
        from surestep.record.checkpoint.load import load_weights

        states = {} if loss is None else state_of_loss(loss)
        codes = {"model": model} | ({} if loss is None else code_of_losses(loss))
        with use_train_modes(model, keep_eval):
            load_weights(
                self.opened,
                model,
                average=self.average,
                loss=states.get(NAME),
                attributes=AttributeWrites(codes),
            )

    def load_state(
        self, state: State, modes: TrainModes, keeper: ShardedStateProvider | None = None
    ) -> None:
        """Load weights and buffers into the model and the loss of an open run.

        Args:
            state: of the run; only what an evaluation uses changes.
            modes: of its model in training.
            keeper: has the parameters that the model lacks.

        Raises:
            CheckpointError: they are of another model.
        """
        from surestep.engine.losses.state import NAME
        from surestep.engine.model.attribute_writes import NAME as ATTRIBUTES
        from surestep.record.checkpoint.load import load_weights

        loss, built = state.callback_states.get(NAME), state.built
        with modes.for_weights():
            load_weights(
                self.opened,
                state.model,
                average=self.average,
                keeper=keeper,
                loss=loss,
                attributes=state.callback_states.get(ATTRIBUTES),
                built=built,
            )


@dataclass(frozen=True)
class Run:
    """A run folder, to read: its config, events and checkpoints.

    Attributes:
        path: the folder.

    Raises:
        RunError: the folder does not exist, or is not a run folder.

    Example:
        >>> import torch
        >>> import surestep
        >>> x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
        >>> task = surestep.Task(torch.nn.Linear(4, 3), loss="multiclass", train=(x, y), val=(x, y))
        >>> config = surestep.Config(epochs=1, batch_size=16, logging={"progress": "quiet"})
        >>> _ = surestep.Trainer(task, config, run="runs/read").fit()
        >>> run = surestep.Run("runs/read")
        >>> run.status["status"]
        'finished'
        >>> run.load_model(torch.nn.Linear(4, 3), which="best").step
        4
    """

    path: FixedPath = FixedPath()  # noqa: RUF009  # a descriptor; it is set to a path or text

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", require_local_path(self.path))  # accept text
        if not self.path.exists():
            raise RunError(f"There is no run folder {self.path}. Check the path.")
        if not (self.path / "config.json").exists():
            raise RunError(
                f"{self.path} is not a run folder: it has no config.json. Check the path; if it "
                "was one, put a copy of that file back."
            )

    @property
    def name(self) -> str:
        """The name of the run: the name of its folder."""
        return self.path.resolve().name

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def config(self) -> dict[str, Any]:
        """The options that were set, by full name, and the recipe with its parameters.

        Raises:
            RunError: `config.json` is missing, cannot be read, or is of a newer surestep.
        """
        return dict(read_json(self.path / "config.json", CONFIG))

    @property
    def status(self) -> dict[str, Any]:
        """The content of `status.json`: whether and how the run ended.

        Raises:
            RunError: the file is missing, cannot be read, or is of a newer surestep.
        """
        newest = shlex.quote(f"{self.path}@last")
        branch = f"surestep train RECIPE --from {newest} --run NEW"
        hint = f"Put a copy of it back, or start a new run from its newest checkpoint: {branch}"
        return dict(read_json(self.path / "status.json", STATUS, hint=hint))

    @property
    def monitor(self) -> tuple[str, Literal["min", "max"]] | None:
        """The metric that decides the best checkpoint, and whether "min" or "max" is better."""
        monitor = self.status.get("monitor")
        return None if monitor is None else (monitor[0], monitor[1])

    @property
    def last(self) -> CheckpointInfo:
        """The newest checkpoint; corrupted ones are skipped with a warning.

        Raises:
            CheckpointError: there is no checkpoint; `find_checkpoint("last")` returns None then.
        """
        return self.saved("last")

    @property
    def best(self) -> CheckpointInfo:
        """The best checkpoint by validation.metric; the newest if nothing was evaluated.

        Raises:
            CorruptCheckpointError: the best checkpoint, or one that may be it, is corrupted.
            CheckpointError: there is no checkpoint, or no value of the metric is finite;
                `find_checkpoint("best")` returns None then.
        """
        return self.saved("best")

    def find_checkpoint(self, which: Literal["best", "last"]) -> CheckpointInfo | None:
        """Return the best or the newest checkpoint; None if there is none.

        Args:
            which: "best" or "last", as the attributes of these names.

        Raises:
            CorruptCheckpointError: the best checkpoint, or one that may be it, is corrupted.
        """
        monitor = None if which == "last" else self.monitor
        found = scan_checkpoints(self.checkpoints)
        if monitor is None:
            for checkpoint in found.newer_damaged():
                logger.warning("%s", checkpoint.reason)
            return found.good[-1] if found.good else None
        ranked = best_first(found.good, *monitor)
        for checkpoint in found.damaged if found.good else []:
            if checkpoint.step == found.good[-1].best_step or checkpoint in found.newer_damaged():
                raise CorruptCheckpointError(f"{checkpoint.reason} {_NO_SECOND}")
        if not ranked and found.good and monitor[0] in found.good[-1].latest:
            return None
        return ranked[0] if ranked else self.find_checkpoint("last")

    @property
    def cycles(self) -> list[CheckpointInfo]:
        """The checkpoints at the ends of the schedule's cycles, for a snapshot ensemble."""
        return ends_of_cycles(scan_checkpoints(self.checkpoints).good)

    @property
    def skipped(self) -> SkippedSteps:
        """The skipped steps, and their samples."""
        return summarize_skips(self.events())

    def load_model(self, model: nn.Module, which: Which | int = "best") -> CheckpointInfo:
        """Verify a checkpoint and load its weights and buffers into a model.

        Buffers with persistent=False are loaded too if training had changed them by then; others
        keep their values, so build the model again for each checkpoint. In eval mode, a module with
        its own train() has the weights that it would have after model.eval().

        Args:
            model: a model of the same architecture.
            which: "best" loads what was evaluated, the weights or their average; "last" the
                newest weights; "average" the newest average; a number the weights of that step.

        Returns:
            The checkpoint that was loaded.

        Raises:
            ConfigError: `which` is invalid.
            CorruptCheckpointError: the best checkpoint, or that of the step, is corrupted.
            CheckpointError: there is no valid checkpoint, or it does not fit the model.
        """
        chosen = self.choose(which)
        chosen.load(model)
        return chosen.saved

    def choose(self, which: Which | int) -> SelectedWeights:
        """Verify every byte of a checkpoint, and return it.

        If the last one is corrupted, the newest valid one is returned, with a warning. The best
        checkpoint and that of a step are never replaced by another.

        Args:
            which: as for load_model.

        Returns:
            The checkpoint; its `load(model)` loads the weights.

        Raises:
            ConfigError: `which` is invalid.
            CorruptCheckpointError: the best checkpoint, or that of the step, is corrupted.
            CheckpointError: there is no valid checkpoint.
        """
        if which not in ("last", "average"):
            return self._choose(which)
        self.saved(which)
        newest = find_newest_valid(self.checkpoints)
        for checkpoint in newest.passed_over:
            logger.warning("%s", checkpoint.reason)
        if newest.opened is None:
            raise CheckpointError(no_checkpoint_message(self.path))
        return SelectedWeights(newest.opened.saved, newest.opened, average=which == "average")

    def _choose(self, which: Which | int) -> SelectedWeights:
        for _ in range(TRIES):
            found = self.saved(which)
            try:
                opened = open_checkpoint(found.path)
            except CheckpointVanishedError:
                continue
            except CorruptCheckpointError as error:
                raise CorruptCheckpointError(f"{error} {_NO_SECOND}") from error
            return SelectedWeights(found, opened, which == "best" and found.evaluated == "average")
        raise CheckpointVanishedError(
            f"{self.checkpoints} loses its checkpoints faster than they can be read."
        )

    def saved(self, which: Which | int) -> CheckpointInfo:
        """Return the best checkpoint, the last (also for "average"), or that of a step.

        No tensor is read.

        Args:
            which: as for load_model.

        Raises:
            ConfigError: `which` is invalid.
            CheckpointError: there is no such checkpoint; the message lists the existing ones.
        """
        if isinstance(which, int):
            return read_info(self.folder_of(which))
        if which not in get_args(Which):
            raise ConfigError(
                f"which={which!r} is not known. {suggest_names(which, get_args(Which))}"
            )
        found = self.find_checkpoint("best" if which == "best" else "last")
        if found is None:
            existing = scan_checkpoints(self.checkpoints)
            if existing.good and self.monitor is not None:
                metric = self.monitor[0]
                latest = existing.good[-1].latest[metric]
                raise CheckpointError(
                    f"{self.path} has no best checkpoint: {metric} was never a finite number, and "
                    f"is {latest} in the latest evaluation. Use which='last' or run.last in "
                    f"Python, {self.path}@last on the command line, and check the metric and the "
                    "validation data."
                )
            raise CheckpointError(no_valid_checkpoint_message(self.checkpoints, existing.damaged))
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
        """Write the weights of a checkpoint to one file that plain PyTorch loads.

        Args:
            path: a file name with the extension .safetensors, or .pt for a state dict.
            which: as for load_model.
            average: export the averaged weights of that checkpoint.
            overwrite: replace an existing file.

        Returns:
            The file, and what was written to it.

        Raises:
            ConfigError: the extension is invalid, the folder is missing, or the file exists.
            CheckpointError: the checkpoint is missing or corrupted, has no average, or the disk
                is full.
        """
        from surestep.record.export import ENDINGS, export

        out = Path(path)
        check_output(out, ENDINGS, overwrite=overwrite)
        chosen = self.choose(which)
        average = average or chosen.average
        return export(chosen.opened, out, run=self.name, average=average, overwrite=overwrite)

    def verify(self) -> list[InspectionResult]:
        """Read every byte of each checkpoint, also of corrupted ones that were renamed.

        Returns:
            Each checkpoint with what is wrong with it, oldest first.

        Raises:
            CheckpointError: the checkpoint folder cannot be listed.
        """
        return examine_all(self.checkpoints, every_byte=True)

    def folder_of(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step; it may be corrupted.

        Args:
            step: number of global batches consumed.

        Raises:
            CheckpointError: there is no such checkpoint; the message lists the existing ones.
        """
        found = {step_of(path): path for path in list_checkpoints(self.checkpoints)}
        if step not in found:
            there = ", ".join(map(str, found)) or "none"
            raise CheckpointError(f"{self.path} has no checkpoint of step {step}. It has: {there}.")
        return found[step]

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the run, in order; an incomplete last line is left out.

        Raises:
            RunError: the file is missing, cannot be read, or is of a newer surestep.
        """
        return read_events(self.path / "events.jsonl")

    def history(self) -> History:
        """Return the steps and evaluations of the run as numpy arrays by name.

        Returns:
            The table, with a row per step: "step", "train/loss", "lr", "val/loss" and so on.

        Raises:
            RunError: the file is missing, cannot be read, or is of a newer surestep.
        """
        from surestep.record.records import load_records

        return load_records(self.path).history

    def _repr_html_(self) -> str:
        """Return a card with the state of the run and its losses, which notebooks show."""
        from surestep.record.card import render_card

        return render_card(
            self.path,
            config=lambda: self.config,
            status=lambda: self.status,
            history=self.history,
        )
