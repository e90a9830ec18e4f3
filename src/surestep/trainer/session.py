"""A Session: an open run, with its steps, evaluations, checkpoints and progress display."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from surestep.base.errors import RunError
from surestep.engine.evaluate.predict import Predictions
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback
from surestep.engine.step.loop import Loop
from surestep.engine.step.train_step import StepResult
from surestep.engine.task.task import Task
from surestep.engine.value import Metrics
from surestep.record.progress_display import NullProgress
from surestep.record.run import Run, Which
from surestep.record.run_writer import RunWriter
from surestep.trainer.checkpointing import CheckpointManager
from surestep.trainer.ending import Ending
from surestep.trainer.evaluations import Evaluations
from surestep.trainer.evaluator import Evaluator
from surestep.trainer.given_batches import check_train_step, offset_positions
from surestep.trainer.incidents import NonFiniteHandler
from surestep.trainer.messages import Messages
from surestep.trainer.review.findings import RunChecks
from surestep.trainer.summary import ThroughputCounter


class Session:
    """An open run, from `prepare()` to `close()`; a context manager.

    Attributes:
        plan: the resolved options, each with its reason.
        task: the task.
        loop: generates the steps.
        system: of the machine.
        finished: whether the run in the folder is finished; there are no steps left then.
        is_fitting: `fit()` takes the steps; the parts then evaluate, save and stop early.
        closed: whether `close()` was called; steps, evaluations and saves are rejected then.
        ignored: a notice about options that your own loop ignores; may be empty.
        timed: how long the steps took.
        messages: what is printed.
        saving: saves checkpoints.
        evaluations: evaluates, and keeps what is best.
        checks: the rules that check the run.
        incidents: handles steps that are not finite.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        loop: Loop,
        evaluator: Evaluator,
        recorder: RunWriter,
        settings: ExitStack,
        system: SystemInfo,
        *,
        finished: bool,
        ignored: str,
    ) -> None:
        self.plan = plan
        self.task = task
        self.loop = loop
        self.system = system
        self.finished, self.ignored = finished, ignored
        self.is_fitting = self.closed = False
        self._recorder, self._settings = recorder, settings
        self._closers: Sequence[Callable[[], None]] = ()
        self._open_steps: WeakSet[Generator[StepResult, None, None]] = WeakSet()
        self.timed, self.messages = ThroughputCounter(), Messages(recorder, loop.state)
        line = self.messages.print_line
        self.saving = CheckpointManager(recorder, loop, evaluator, line, lambda: self.closed)
        self.evaluations = Evaluations(loop, task, evaluator, recorder, self.saving, self.messages)
        self.checks = RunChecks(loop, task, system, recorder, line)
        self.incidents = NonFiniteHandler(loop, recorder, self.saving.ensure_saved, line)
        self._ending = Ending(loop, recorder, self.timed, self.checks, line)

    def open(
        self,
        parts: Sequence[Callback],
        display: NullProgress,
        closers: Sequence[Callable[[], None]],
        *,
        is_saved: bool,
    ) -> None:
        """Start the parts of the run; `prepare()` calls this once.

        Args:
            parts: in order.
            display: of the progress, one of them.
            closers: called in order when the session closes, after the process group and all saves.
            is_saved: whether the state was loaded from a checkpoint of this run.
        """
        self.messages.show_on(display)
        self.loop.attach(parts, self.messages.notify)
        if is_saved:
            self.saving.loaded()
        self._closers = closers

    @property
    def state(self) -> State:
        """Everything that changes during training."""
        return self.loop.state

    @property
    def model(self) -> nn.Module:
        """The model, on its device."""
        return self.loop.state.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of a task with one; several are in `state.optimizers`, by name."""
        return self.loop.state.optimizer

    @property
    def metadata(self) -> dict[str, Any]:
        """Your own values, saved with each checkpoint; they must be valid JSON."""
        return self.loop.state.metadata

    @property
    def run(self) -> Run:
        """The run folder, to read."""
        return self._recorder.run

    def steps(self) -> Iterator[StepResult]:
        """Train from the current progress to the end of the run, yielding after each step.

        Only you evaluate and save: call `evaluate()` and `save()`. You can break out of the loop at
        any time, and save, evaluate, or continue with another `steps()`.

        Yields:
            What the step did; reading one of its tensors waits for the device.

        Raises:
            NonFiniteError: the loss or a gradient is not finite; the state is that before the step.
            RunError: the session is closed.
        """
        self._check_open()
        if self.finished:
            return iter(())
        if not self.is_fitting:
            self.messages.notify_once(self.ignored)
        self._open_steps.add(steps := self.loop.steps(is_fit=self.is_fitting))
        return steps

    def start_fit(self) -> None:
        """Let the parts of the run evaluate, save and stop early from now on, as `fit()` does."""
        self.is_fitting = True

    def train_step(self, micro_batches: Sequence[Any]) -> StepResult:
        """Take one step on your own batches, which together are the global batch.

        The position in the training data does not change.

        Args:
            micro_batches: batches like those of the Task's data, of any sizes.

        Returns:
            What the step did; reading one of its tensors waits for the device.

        Raises:
            ConfigError: there are no batches, or an option needs those of the training data.
            RunError: the session is closed.
        """
        self._check_open()
        check_train_step(self.plan, micro_batches, fits=self.loop.fitted is not None)
        self.messages.notify_once(self.ignored)
        loader, progress = self.loop.loader, self.state.progress
        position = (progress.epoch, progress.position, progress.position)
        batch = loader.make_batch(micro_batches, position, progress.step)
        if self.loop.world.size > 1:
            batch = offset_positions(self.loop.world, batch)
        self.incidents.keep_batch(batch, progress.step)
        self._ending.is_manual = True
        result = self.loop.step(loader.move(batch))
        self.loop.log.take_if_due()
        return result

    def evaluate(self, split: str | None = None) -> Metrics:
        """Compute the loss and the metrics of one split, or of all validation sets.

        Args:
            split: the name of a validation set, "train" or "test"; None evaluates all validation
                sets, and updates the best metric and the patience of the run.

        Returns:
            Numbers on the host, by "split/metric"; `.tables` has confusion matrices and the like.

        Raises:
            ConfigError: there is no such split.
            RunError: the session is closed.
        """
        self._check_open()
        return self.evaluations.evaluate(split)

    def evaluate_checkpoint(self, split: str, which: Which) -> Metrics:
        """Evaluate all of a split with the weights of a checkpoint; restore the model's weights.

        Args:
            split: the name of a validation set, "train" or "test".
            which: the best checkpoint, the last, or the newest average.

        Returns:
            Numbers on the host, by "split/metric"; `.tables` has confusion matrices and the like.

        Raises:
            ConfigError: there is no such split.
            CheckpointError: there is no such checkpoint, or it is corrupted.
        """
        return self.evaluations.evaluate_checkpoint(split, which)

    def predict(
        self, split: str, which: Which | None = None, *, mc_dropout: int | None = None
    ) -> Predictions:
        """Predict every sample of one split, in stored order.

        Args:
            split: "train", "test" or the name of a validation set.
            which: the checkpoint whose weights to use; the model's weights are restored. None uses
                the current weights, or their average if there is one, as evaluations do.
            mc_dropout: number of passes with dropout on; None is one pass without dropout.

        Returns:
            numpy arrays by name ("index", "output", ...), one row per sample.

        Raises:
            ConfigError: there is no such split.
            TaskError: the model has no dropout, or the outputs do not have one row per sample.
            CheckpointError: there is no such checkpoint, or it is corrupted.
        """
        return self.evaluations.predict(split, which, mc_dropout)

    def save(self) -> Path:
        """Save a checkpoint, and wait until it is on disk.

        Returns:
            Its folder.

        Raises:
            CheckpointError: the disk is full or read-only; older checkpoints are unchanged.
        """
        self._check_open()
        return self.saving.save()

    def end(self, status: str, **more: Any) -> None:
        """Write how the run ended: finished, stopped or failed.

        Without this call, `close()` writes it.

        Args:
            status: "finished", "stopped" or "failed".
            more: other entries of `status.json`, such as `reason`.

        Raises:
            StatusWriteError: `status.json` cannot be written; saved checkpoints are unchanged.
        """
        self.saving.wait()
        self._ending.write(status, **more)

    def close(self) -> None:
        """Unlock the run folder and restore every module's mode; a second call does nothing.

        It first writes how the run ended, unless `end()` did: "finished" if all steps are done,
        "failed" if an error left the `with` block, otherwise "stopped".
        """
        if self.closed:
            return
        self.closed = True
        with ExitStack() as stack:  # runs each of these last to first, even if others fail
            for close in (self._recorder.close, *reversed(self._closers)):
                stack.callback(close)
            stack.callback(self._recorder.collect_saves, wait=True)
            stack.callback(self._settings.close)
            for steps in self._open_steps:  # the traceback of an error may still reference one
                stack.callback(steps.close)
            stack.callback(self.loop.loader.close)
            stack.callback(self.evaluations.close)
            stack.callback(self.messages.display.close)
            if not self.finished:
                stack.push(self._ending.write_if_missing)
            stack.callback(self.saving.wait)
            for hook in self.loop.parts.hooks("on_end"):
                stack.callback(self._ending.call, hook, self.state)
            if self.state.counts.skipped:
                stack.callback(self._recorder.write_skipped)
            stack.callback(self.loop.log.take)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.loop.world.failed(error)
        if error is not None and not self.closed:
            self._ending.note(error)
        self._ending.call(self.close)

    def list_not_checked(self, notes: dict[str, str]) -> None:
        """List in the Plan what could not be checked.

        Args:
            notes: why, by what.
        """
        if notes:
            self.plan = self.plan.list_not_checked(notes)
            if self.loop.world.is_first and not self.finished:
                self._recorder.write_plan(self.plan)

    def _check_open(self) -> None:
        if self.closed:
            raise RunError(
                f"The session of {self._recorder.folder} is closed: it takes no step, and "
                "evaluates and saves nothing. Open a new one with prepare(task, config, run=...), "
                "or call trainer.fit(); trainer.evaluate('val') evaluates its checkpoints."
            )
