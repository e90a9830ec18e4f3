"""A Session: an open run, with its steps, evaluations, checkpoints and progress display."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import nn

from surestep.base.errors import RunError, SurestepError
from surestep.engine.evaluate.predict import Predictions
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.specs import raw_name
from surestep.engine.plan.system import SystemInfo
from surestep.engine.state.average import AveragedWeights
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback
from surestep.engine.step.loop import Loop
from surestep.engine.step.train_step import StepResult
from surestep.engine.task.task import Task
from surestep.engine.value import Metrics, Value, shown
from surestep.record.checkpoint.discovery import checkpoint_name, list_checkpoints
from surestep.record.checkpoint.reader import CheckpointReader
from surestep.record.progress_display import NullProgress
from surestep.record.run import Run, Which
from surestep.record.run_writer import RunWriter
from surestep.trainer.best_metric import update_best
from surestep.trainer.checkpointing import CheckpointManager
from surestep.trainer.evaluator import Evaluator
from surestep.trainer.given_batches import check_train_step, offset_positions
from surestep.trainer.incidents import NonFiniteHandler
from surestep.trainer.rank_zero import load_checkpoint
from surestep.trainer.request_handler import RequestHandler
from surestep.trainer.review.findings import RunChecks, describe
from surestep.trainer.summary import ThroughputCounter, end_of_loop, summarize_run, write_summary


class Session:
    """An open run, from `prepare()` to `close()`; a context manager.

    Attributes:
        plan: the resolved options, each with its reason.
        task: the task.
        loop: generates the steps.
        system: of the machine.
        finished: whether the run in the folder is finished; there are no steps left then.
        closed: whether `close()` was called; steps, evaluations and saves are rejected then.
        ignored: a notice about options that your own loop ignores; may be empty.
        incidents: handles steps that are not finite.
        saving: saves checkpoints.
        checks: the rules that check the run.
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
        self.finished, self.closed, self.ignored = finished, False, ignored
        self._has_end = self._has_manual_steps = False
        self._error: BaseException | None = None  # the error that left the `with` block
        self.timed = ThroughputCounter()
        self._evaluator = evaluator
        self._recorder = recorder
        self._settings, self._last = settings, list[Callable[[], None]]()
        self._open_steps: WeakSet[Generator[StepResult, None, None]] = WeakSet()
        self._noticed: set[str] = set()
        self._progress: NullProgress = NullProgress()
        self.saving = CheckpointManager(
            recorder, loop, evaluator, self.print_line, lambda: self.closed
        )
        self.requests = RequestHandler(self.saving.save_async, self.evaluate)
        self.checks = RunChecks(loop, task, system, recorder, self.print_line)
        self.incidents = NonFiniteHandler(loop, recorder, self.ensure_saved, self.print_line)

    def open(
        self, parts: Sequence[Callback], progress: NullProgress, checkpoint: Path | None
    ) -> None:
        """Start the parts of the run; `prepare()` calls this once.

        Args:
            parts: in order.
            progress: the display, one of them.
            checkpoint: folder of the checkpoint of this run that was loaded; None if none was.
        """
        self._progress = progress
        self.loop.attach(parts, self.notify)
        if checkpoint is not None:
            self.saving.step, self.saving.path = self.state.progress.step, checkpoint

    def at_end(self, close: Callable[[], None], *, is_last: bool = False) -> None:
        """Call a function when the session closes, after the end of the run is written.

        Args:
            close: called once.
            is_last: after the process group and all saves, in the order of these calls.
        """
        (self._last.append if is_last else self._settings.callback)(close)

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
        if not self.finished:
            self._notice_once(self.ignored)
        return self.fit_steps()

    def fit_steps(self) -> Iterator[StepResult]:
        """Return the steps for `fit()`, which acts on all options; see `steps()`.

        Yields:
            What the step did.

        Raises:
            RunError: the session is closed.
        """
        self._check_open()
        if self.finished:
            return iter(())
        self._open_steps.add(steps := self.loop.steps())
        return steps

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
        check_train_step(self.plan, micro_batches)
        self._notice_once(self.ignored)
        loader, progress = self.loop.loader, self.state.progress
        position = (progress.epoch, progress.position, progress.position)
        batch = loader.make_batch(micro_batches, position, progress.step)
        if self.loop.world.size > 1:
            batch = offset_positions(self.loop.world, batch)
        self.incidents.keep_batch(batch, progress.step)
        self._has_manual_steps = True
        result = self.loop.step(loader.move(batch))
        self.loop.maybe_log()
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
        self.loop.log_point()
        self._evaluator.check(split)
        with self.loop.pause_clock():
            step, average = self.state.progress.step, self._average()
            metrics = self._evaluate_weights(split, average)
        monitored = (self.plan.validation_metric or "").split("/")[0]
        is_raw = average is None or (
            self.plan.validation_weights == "both"
            and monitored in map(raw_name, self.task.val_sets())
        )
        measured: Literal["weights", "average"] = "weights" if is_raw else "average"
        self._recorder.event("evaluation", step=step, metrics=metrics, measured=measured)
        if split is None and not self.is_evaluated:
            best = self.state.best
            best.latest, best.latest_step, best.measured = dict(metrics), step, measured
            best.is_due = False
            self.saving.step = None  # a checkpoint of this step does not have the metrics
            for line in update_best(
                self.plan, self.state, metrics, self.loop.context.schedule.peak
            ):
                self.print_line(line)
            self.loop.call("on_evaluate", Metrics(metrics))
        if metrics:
            limit = self.plan.limit_val_batches
            of = " of the average" if average is not None else ""
            if limit and split in (None, *self.task.val_sets()):
                of += f" on {limit} batches"
            self.print_line(f"step {step}{of}: {shown(metrics)}")
        self.loop.run_requests()
        return Metrics(metrics)

    def _average(self) -> AveragedWeights | None:
        """Return the average that evaluations use; None if they use the weights."""
        return None if self.plan.validation_weights == "raw" else self._evaluator.average()

    def _evaluate_weights(
        self, split: str | None, average: AveragedWeights | None
    ) -> dict[str, Value]:
        """Evaluate the average, and also the weights if the Plan says so."""
        with nullcontext() if average is None else average.swapped_in():
            metrics = raw = self._evaluator.evaluate(split, self._notice_once)
        if self.plan.validation_weights != "both":
            return metrics
        if average is not None:
            raw = self._evaluator.evaluate(split, self._notice_once)
        for name, value in raw.items():
            own, metric = name.split("/", 1)
            metrics = metrics | {f"{raw_name(own)}/{metric}": value}
        return metrics

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
        self._evaluator.check(split)
        with self.loop.pause_clock(), self._evaluator.using_checkpoint(self.run, which) as saved:
            metrics, samples = self._evaluator.evaluate_all(split, self._notice_once)
        self._recorder.event("evaluation", step=saved.step, metrics=metrics, which=which)
        where = f"{which} checkpoint, step {saved.step}, {samples} samples of {split}"
        self.print_line(f"{where}: {shown(metrics)}")
        return Metrics(metrics)

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
        with self.loop.pause_clock():
            if which is not None:
                with self._evaluator.using_checkpoint(self.run, which):
                    return self._evaluator.predict(split, mc_dropout)
            average = self._average()
            with nullcontext() if average is None else average.swapped_in():
                return self._evaluator.predict(split, mc_dropout)

    def save(self) -> Path:
        """Save a checkpoint, and wait until it is on disk.

        Returns:
            Its folder.

        Raises:
            CheckpointError: the disk is full or read-only; older checkpoints are unchanged.
        """
        self._check_open()
        return self.saving.save()

    def ensure_saved(self) -> Path:
        """Save a checkpoint if the current step has none, and wait until it is on disk.

        Returns:
            Its folder.

        Raises:
            CheckpointError: the disk is full or read-only; older checkpoints are unchanged.
        """
        self.saving.flush()
        return self._recorder.checkpoints / checkpoint_name(self.state.progress.step)

    def rollback(self, checkpoint: CheckpointReader) -> None:
        """Load an earlier checkpoint of this run, and continue from there.

        Args:
            checkpoint: the checkpoint, of which every byte was verified.
        """
        with self.loop.context.train_modes.for_weights():
            load_checkpoint(self.loop.world, checkpoint, self.state)
        self.loop.continue_from_checkpoint()

    @property
    def is_evaluated(self) -> bool:
        """Whether the current step has been evaluated."""
        return self.state.best.latest_step == self.state.progress.step

    @property
    def is_saved(self) -> bool:
        """Whether the current state has been saved, or is being saved."""
        return self.saving.step == self.state.progress.step

    def print_line(self, text: str) -> None:
        """Print a line to the progress display.

        Args:
            text: the line.
        """
        self._progress.print_line(text)

    def end(self, status: str, **more: Any) -> None:
        """Write how the run ended: finished, stopped or failed.

        Without this call, `close()` writes it.

        Args:
            status: "finished", "stopped" or "failed".
            more: other entries of `status.json`, such as `reason`.

        Raises:
            StatusWriteError: `status.json` cannot be written; saved checkpoints are unchanged.
        """
        self._has_end = True
        self.saving.wait()
        findings = self.checks.at_end(is_finished=status == "finished")
        summary = {
            **summarize_run(self.plan, self.state, self.timed, status),
            **more,
            "findings": [asdict(finding) for finding in findings],
        }
        write_summary(self._recorder, status, summary)
        for finding in findings:
            if finding not in self.checks.shown:
                self.print_line(describe(finding))

    def close(self) -> None:
        """Unlock the run folder and restore every module's mode; a second call does nothing.

        It first writes how the run ended, unless `end()` did: "finished" if all steps are done,
        "failed" if an error left the `with` block, otherwise "stopped".
        """
        if self.closed:
            return
        self.closed = True
        with ExitStack() as stack:  # runs each of these last to first, even if others fail
            for close in (self._recorder.close, *reversed(self._last)):
                stack.callback(close)
            stack.callback(self._recorder.collect_saves, wait=True)
            stack.callback(self._settings.close)
            for steps in self._open_steps:  # the traceback of an error may still reference one
                stack.callback(steps.close)
            stack.callback(self.loop.loader.close)
            stack.callback(self._evaluator.close)
            stack.callback(self._progress.close)
            stack.push(self._write_end)
            stack.callback(self.saving.wait)
            for hook in self.loop.hooks("on_end"):
                stack.callback(hook, self.state)
            if self.state.counts.skipped:
                stack.callback(self._recorder.write_skipped)
            stack.callback(self.loop.log_point)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.loop.world.failed(error)
        self._error = error
        if error is not None and not self.closed:
            self._call_on_exception(error)
        try:
            self.close()
        except SurestepError as late:
            if error is None:
                raise
            error.add_note(f"While closing: {late}")

    def _write_end(self, kind: object, late: BaseException | None, traceback: object) -> None:
        """Write how the run ended, if `end()` did not; `late` was raised while closing."""
        if self._has_end or self.finished:
            return
        error = self._error or late
        status, reason = end_of_loop(self.loop, error, is_manual=self._has_manual_steps)
        can_resume = bool(list_checkpoints(self._recorder.checkpoints))
        self.end(
            status, reason=reason, **({"resumable": can_resume} if status == "stopped" else {})
        )

    def _call_on_exception(self, error: BaseException) -> None:
        for callback in self.loop.parts:
            try:
                callback.on_exception(self.state, error)
            except Exception as late:  # the error that ended the run is the one to raise
                kind = type(callback).__name__
                error.add_note(f"{kind}.on_exception failed: {type(late).__name__}: {late}")

    def notify(self, text: str) -> None:
        """Print a line and write it to the events.

        Args:
            text: the line.
        """
        self._recorder.event("notice", step=self.state.progress.step, text=text)
        self.print_line(text)

    def list_not_checked(self, notes: dict[str, str]) -> None:
        """List in the Plan what could not be checked.

        Args:
            notes: why, by what.
        """
        if notes:
            self.plan = self.plan.list_not_checked(notes)
            if self.loop.world.is_first and not self.finished:
                self._recorder.write_plan(self.plan)

    def _notice_once(self, text: str) -> None:
        if text and text not in self._noticed:
            self._noticed.add(text)
            self.notify(text)

    def _check_open(self) -> None:
        if self.closed:
            raise RunError(
                f"The session of {self._recorder.folder} is closed: it takes no step, and "
                "evaluates and saves nothing. Open a new one with prepare(task, config, run=...), "
                "or call trainer.fit(); trainer.evaluate('val') evaluates its checkpoints."
            )
