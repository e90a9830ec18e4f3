"""Saving what a session has reached, and telling what came of it."""

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path

from surestep.base.errors import CheckpointError, RunError
from surestep.base.text import format_bytes
from surestep.engine.optim.param_groups import parameters_of
from surestep.engine.optim.state_size import state_bytes
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.memory_estimate import tensor_bytes
from surestep.engine.schedule.lr import cycle_ends
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.callback import SavedCheckpoint, callbacks_with
from surestep.engine.step.loop import Loop
from surestep.engine.value import Value
from surestep.record.checkpoint.discovery import list_checkpoints, size_on_disk
from surestep.record.checkpoint.writer import SaveResult
from surestep.record.run_writer import RunWriter
from surestep.trainer.evaluator import Evaluator
from surestep.trainer.rank_zero import broadcast_save_results, wait_while_rank_zero_writes


class CheckpointManager:
    """The saves of one session.

    Args:
        recorder: of the run folder.
        loop: whose state is saved.
        gauge: makes the average ready.
        say: shows a line.

    Attributes:
        step: of the newest save that did not fail.
        path: of the newest checkpoint that is written.
    """

    def __init__(
        self, recorder: RunWriter, loop: Loop, gauge: Evaluator, say: Callable[[str], None]
    ) -> None:
        self.step: int | None = None
        self.path: Path | None = None
        self._recorder = recorder
        self._loop = loop
        self._gauge = gauge
        self._say = say
        self._is_first = True
        self._under_way = 0  # saves whose outcome the ranks do not know yet
        self._metrics: deque[dict[str, Value]] = deque()  # of the saves under way, in order
        self._told: str | None = None  # what the disk said of the newest save, where that failed

    def save_async(self) -> None:
        """Save the state of this moment; where a thread writes, only the copy is waited for.

        What could not be written is told at the next log point, and the next save tries again.

        Raises:
            CheckpointError: a part of the state has no plain form.
        """
        self._save()
        self.collect()

    def save(self) -> Path:
        """Save the state of this moment, and wait until it is written; return its folder.

        Raises:
            CheckpointError: the disk is full or cannot be written; the older ones are untouched.
        """
        self.collect(wait=True)
        self._save()
        (outcome,) = self._outcomes(wait=True)
        if outcome.path is None:
            assert outcome.error is not None
            self.step = None
            raise outcome.error
        self._take_in(outcome)
        return outcome.path

    def flush(self) -> None:
        """Wait for what is being written; save this step where that failed or was not done.

        Raises:
            CheckpointError: the disk is full or cannot be written; the older ones are untouched.
        """
        self.collect(wait=True)
        is_behind = self.step != self._loop.state.progress.step
        if any(self._loop.world.all_reduce_max([is_behind])):
            self.save()

    def collect(self, *, wait: bool = False, together: bool = True) -> None:
        """Take in what came of the saves that are done, or of all of them.

        Args:
            wait: for what is being written.
            together: all ranks are here; else nothing is taken in, but for `leave` to do.

        Raises:
            Exception: what is no trouble of the disk's.
        """
        if self._loop.world.size > 1 and not together:
            return
        for outcome in self._outcomes(wait=wait):
            self._take_in(outcome)

    def wait(self) -> None:
        """Wait for what this rank writes, whatever becomes of the others.

        Raises:
            Exception: what is no trouble of the disk's.
        """
        for outcome in self._recorder.collect_saves(wait=True):
            self._take_in(outcome)

    def _outcomes(self, *, wait: bool) -> list[SaveResult]:
        """Return what came of saves, on all ranks the same: what they do next hangs on that."""
        outcomes = self._recorder.collect_saves(wait=wait)
        if self._under_way:
            outcomes = broadcast_save_results(self._loop.world, outcomes)
        self._under_way -= len(outcomes)
        return outcomes

    def _save(self) -> None:
        self._loop.log_point()
        self._gauge.sync_buffers()
        self._gauge.average()
        self._recorder.save(self._loop.state, self._loop.plan)
        self._under_way += 1
        wait_while_rank_zero_writes(self._loop.world)
        self.step = self._loop.state.progress.step
        standing = self._loop.state.best
        measured = standing.latest_step == self.step
        self._metrics.append(dict(standing.latest) if measured else {})

    def _take_in(self, outcome: SaveResult) -> None:
        if outcome.path is not None and self._is_first:
            self._is_first = False
            self._tell_room(outcome.path)
        self.path = outcome.path or self.path
        metrics = self._metrics.popleft()
        if outcome.path is not None:
            self._told = None
            self._call_on_save(SavedCheckpoint(outcome.path, outcome.step, metrics))
        if outcome.path is None and self.step == outcome.step:
            self.step = None
        if outcome.error is None:
            return
        if not isinstance(outcome.error, CheckpointError):
            raise outcome.error
        text = str(outcome.error)
        if outcome.path is None:
            text = self._failed(outcome, text)
        self._recorder.event("notice", step=outcome.step, text=text)
        self._say(text)

    def _call_on_save(self, checkpoint: SavedCheckpoint) -> None:
        loop = self._loop
        for callback in callbacks_with(loop.callbacks, "on_save"):
            loop.queue_request(callback.on_save(loop.state, checkpoint))

    def _failed(self, outcome: SaveResult, text: str) -> str:
        """Return what is told of a failed save: in full once, then shortly until one succeeds."""
        cause = outcome.error.__cause__ if outcome.error is not None else None
        said = str(cause.strerror or cause) if isinstance(cause, OSError) else None
        again, self._told = said is not None and said == self._told, said
        if again:
            return f"Again: step {outcome.step} could not be saved: {said}."
        return f"{text} The run goes on, and the next save tries again."

    def _tell_room(self, path: Path) -> None:
        """Tell, of the size that was really written, where what is to stay will not fit."""
        folder = self._recorder.folder
        text = disk_space_warning(folder, self._loop.plan, size_on_disk(path))
        if text is not None and not any(
            each.startswith(FILLS_UP) for each in self._recorder.warnings
        ):
            self._recorder.event("notice", step=self._loop.state.progress.step, text=text)
            self._say(text)


FILLS_UP = "THE DISK MAY FILL UP"


def check_disk_space(folder: Path, plan: Plan, state: State) -> str | None:
    """Return what to tell where the checkpoints will not all fit, before a run trains.

    Args:
        folder: of the run.
        plan: says how many stay.
        state: what each will hold.

    Raises:
        RunError: not even one fits beside what is there.
    """
    there = list_checkpoints(folder / "checkpoints")
    size = size_on_disk(there[-1]) if there else estimate_checkpoint_bytes(plan, state)
    free = _free(folder)
    if free is not None and size > free:
        raise RunError(
            f"A checkpoint of this run takes about {format_bytes(size)}, and "
            f"{format_bytes(free)} are "
            f"free on the disk of {folder}: none could be saved. Free some space, or choose "
            "another folder with --run (run= in Python)."
        )
    return disk_space_warning(folder, plan, size)


def disk_space_warning(folder: Path, plan: Plan, size: int) -> str | None:
    """Return what to tell where as many checkpoints of this size as will stay do not fit."""
    free = _free(folder)
    counts = _most(plan)
    count = sum(counts.values())
    there = sum(map(size_on_disk, list_checkpoints(folder / "checkpoints")))
    if free is None or count * size <= free + there:
        return None
    parts = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    return (
        f"{FILLS_UP}: checkpoints of about {format_bytes(size)}, up to {count} at once "
        f"({parts}), take {format_bytes(count * size)}, and {format_bytes(free + there)} are "
        "there for "
        f"them on the disk of {folder}. Say a smaller checkpoint.keep_last, keep_best or a longer "
        "keep_every, free some space, or choose another folder with --run (run= in Python)."
    )


def estimate_checkpoint_bytes(plan: Plan, state: State) -> int:
    """Return what the tensors of a checkpoint will take, once the optimizers have their state."""
    trained = list(trainable_parameters(state.model).values())
    whole = plan.checkpoint_weights == "all"
    total = tensor_bytes(state.model.parameters()) if whole else tensor_bytes(trained)
    total += tensor_bytes(state.model.buffers())
    for name, optimizer in state.optimizers.items():
        own = plan.optimizers.get(name, plan)
        moved = list(parameters_of(optimizer))
        total += state_bytes(own.optim_name, own.optim_options, state.model, moved) or 0
    return total + (0 if state.average is None else tensor_bytes(state.average.tensors.values()))


def _most(plan: Plan) -> dict[str, int]:
    """Return how many lie on the disk at once at most, by why; no more than steps can be saved."""
    every = plan.checkpoint_keep_every
    best = plan.checkpoint_keep_best if plan.validation_metric else 0
    counts = {
        "last": plan.checkpoint_keep_last,
        "best": best,
        "best before": 1 if best and plan.on_spike == "rollback" else 0,
        "milestones": 0
        if every is None
        else int(plan.total_steps / every.steps(plan.steps_per_epoch)),
        "cycles": len(cycle_ends(plan.schedule)),
        "being written": 1,
    }
    left = plan.total_steps
    for name in counts:
        counts[name] = min(counts[name], left)
        left -= counts[name]
    return counts


def _free(folder: Path) -> int | None:
    """Return the free bytes of a disk; None where it does not say."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return None
    return found.free if found.total else None
