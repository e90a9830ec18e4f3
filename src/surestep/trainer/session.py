"""A Session: an open run, with its steps, evaluations, checkpoints and progress display."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import nn

from surestep.base.errors import ConfigError, RunError, SurestepError
from surestep.engine.evaluate.predict import Predictions
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.specs import raw_name
from surestep.engine.plan.system import SystemInfo
from surestep.engine.state.average import AveragedWeights
from surestep.engine.state.state import State
from surestep.engine.step.callback import Request
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.step.train_step import StepResult
from surestep.engine.task.task import Task
from surestep.engine.value import Value, shown
from surestep.record.checkpoint.reader import CheckpointReader
from surestep.record.checkpoint.staging import check_can_be_saved
from surestep.record.progress_display import NullProgress, PlainProgress, TqdmProgress
from surestep.record.run import Run, Which
from surestep.record.run_writer import RunWriter
from surestep.trainer.best_metric import update_best
from surestep.trainer.checkpointing import CheckpointManager
from surestep.trainer.evaluator import Evaluator
from surestep.trainer.findings import Case, Finding, Observed, find
from surestep.trainer.incidents import NonFiniteHandler, out_of_memory, sample_indices
from surestep.trainer.rank_zero import load_checkpoint, offset_positions
from surestep.trainer.summary import ThroughputCounter, end_of_loop, summarize_run, write_summary


class Session:
    """An open run, from `prepare()` to `close()`; a context manager.

    Attributes:
        plan: the resolved options, each with its reason.
        task: the task.
        loop: generates the steps.
        finished: whether the run in the folder is finished; there are no steps left then.
        closed: whether `close()` was called; steps, evaluations and saves are rejected then.
        incidents: handles steps that are not finite.
        saving: saves checkpoints.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        loop: Loop,
        gauge: Evaluator,
        recorder: RunWriter,
        settings: ExitStack,
        facts: SystemInfo,
    ) -> None:
        self.plan = plan
        self.task = task
        self.loop = loop
        self.finished = self.closed = False
        self._has_end = self._has_own_steps = False
        self._error: BaseException | None = None  # the error that left the `with` block
        self.timed = ThroughputCounter()
        self.observed = Observed(loop.state.model, plan)
        self._facts = facts
        self._gauge = gauge
        self._recorder = recorder
        self._settings = settings
        self._open: WeakSet[Generator[StepResult, None, None]] = WeakSet()
        self._noticed: set[str] = set()
        self._progress: NullProgress | PlainProgress | TqdmProgress = NullProgress()
        self.saving = CheckpointManager(recorder, loop, gauge, self.print_line)
        loop.on_log.append(self._log)
        loop.after_first.append(partial(check_can_be_saved, loop.state))
        loop.handlers = {Request.SAVE: self.saving.save_async, Request.EVALUATE: self.evaluate}
        self.incidents = NonFiniteHandler(loop, recorder, self.ensure_saved, self.print_line)
        loop.out_of_memory = partial(out_of_memory, recorder, loop)

    def open(
        self,
        progress: NullProgress | PlainProgress | TqdmProgress,
        checkpoint: Path | None,
        *,
        finished: bool,
    ) -> None:
        """Start the progress display; `prepare()` calls this once."""
        self._progress, self.finished = progress, finished
        if checkpoint is not None:
            self.saving.step, self.saving.path = self.state.progress.step, checkpoint

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

        You can break out of the loop at any time, and save, evaluate, or continue with another
        `steps()`. Reading a tensor of the yielded result waits for the device.

        Raises:
            NonFiniteError: the loss or a gradient is not finite; the state is the one before.
            RunError: the session is closed.
        """
        check_open(self._recorder.folder, closed=self.closed)
        if self.finished:
            return iter(())
        self._open.add(steps := self.loop.steps())
        return steps

    def train_step(self, micro_batches: Sequence[Any]) -> StepResult:
        """Take one step on your own batches, which together are the global batch.

        The position in the training data does not change. Reading a tensor of the result waits for
        the device.

        Args:
            micro_batches: batches like those of the Task's data, of any sizes.

        Raises:
            ConfigError: there are no batches.
            RunError: the session is closed.
        """
        check_open(self._recorder.folder, closed=self.closed)
        check_train_step(self.plan, micro_batches)
        feed, place = self.loop.loader, self.state.progress
        batch = feed.make_batch(micro_batches, (place.epoch, place.position, place.position))
        if self.loop.world.size > 1:
            batch = offset_positions(self.loop.world, batch)
        self.loop.manual_batches[place.step] = batch
        self._has_own_steps = True
        result = self.loop.step(feed.move(batch))
        self.loop.maybe_log()
        return result

    def evaluate(self, split: str | None = None) -> dict[str, Value]:
        """Compute the loss and the metrics of one split, or of all validation sets.

        Args:
            split: the name of a validation set, "train" or "test"; None evaluates all validation
                sets, and updates the best metric and the patience of the run.

        Returns:
            Numbers on the host, by "split/metric".

        Raises:
            ConfigError: there is no such split.
            RunError: the session is closed.
        """
        check_open(self._recorder.folder, closed=self.closed)
        self.loop.log_point()
        self._gauge.check(split)
        step, average = self.state.progress.step, self._average()
        metrics = self._measure_both(split, average)
        measured: Literal["weights", "average"] = "average"
        if average is None or self._is_judged_by_raw():
            measured = "weights"
        self._recorder.event("evaluation", step=step, metrics=metrics, measured=measured)
        if split is None and not self.is_evaluated:
            standing = self.state.best
            standing.latest, standing.latest_step, standing.measured = metrics, step, measured
            standing.is_due = False
            self.saving.step = None  # a checkpoint of this step has not got that
            for said in update_best(self.plan, self.state, metrics, self.loop.parts.peak_rates[0]):
                self.print_line(said)
            for callback in self.loop.callbacks:
                self.loop.queue_request(callback.on_evaluate(self.state, metrics))
        if metrics:
            of = " of the average" if average is not None else ""
            limit = self.plan.limit_val_batches
            parts = (
                f" on {limit} batches" if limit and split in (None, *self.task.val_sets()) else ""
            )
            self.print_line(f"step {step}{of}{parts}: {shown(metrics)}")
        self.loop.run_requests()
        return metrics

    def _average(self) -> AveragedWeights | None:
        """Return the average that evaluations measure; None for the weights themselves."""
        return None if self.plan.validation_weights == "raw" else self._gauge.average()

    def _measure_both(self, split: str | None, average: AveragedWeights | None) -> dict[str, Value]:
        """Measure the average, and the raw weights beside it if the Plan says so."""
        with nullcontext() if average is None else average.swapped_in():
            metrics = self._gauge.measure(split, self._notice_once)
        if self.plan.validation_weights != "both":
            return metrics
        raw = metrics
        if average is not None:
            raw = self._gauge.measure(split, self._notice_once)
        named = (name.split("/", 1) for name in raw)
        keys = [f"{raw_name(own)}/{metric}" for own, metric in named]
        return metrics | dict(zip(keys, raw.values(), strict=True))

    def _is_judged_by_raw(self) -> bool:
        judged = (self.plan.validation_metric or "").split("/")[0]
        raw = map(raw_name, self.task.val_sets())
        return self.plan.validation_weights == "both" and judged in raw

    def evaluate_checkpoint(self, split: str, which: Which) -> dict[str, Value]:
        """Evaluate a split with the weights of a checkpoint; the model's weights are restored."""
        self._gauge.check(split)
        with self._gauge.using_checkpoint(self.run, which) as saved:
            metrics = self._gauge.measure(split, self._notice_once)
        self._recorder.event("evaluation", step=saved.step, metrics=metrics, which=which)
        self.print_line(f"{which} checkpoint, step {saved.step}: {shown(metrics)}")
        return metrics

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
        """
        average = self._average() if which is None else None
        now = nullcontext() if average is None else average.swapped_in()
        with now if which is None else self._gauge.using_checkpoint(self.run, which):
            return self._gauge.predict(split, mc_dropout)

    def save(self) -> Path:
        """Save a checkpoint, and wait until it is on disk.

        Returns:
            Its folder.

        Raises:
            CheckpointError: the disk is full or read-only; older checkpoints are unchanged.
        """
        check_open(self._recorder.folder, closed=self.closed)
        return self.saving.save()

    def ensure_saved(self) -> Path:
        """Save a checkpoint if the current step has none; return its folder."""
        self.saving.flush()
        return self._recorder.checkpoints / f"step-{self.state.progress.step:08d}"

    def rollback(self, checkpoint: CheckpointReader) -> None:
        """Load an earlier checkpoint of this run, and continue from there."""
        load_checkpoint(self.loop.world, checkpoint, self.state)
        self.saving.step = None
        self.loop.on_rollback()
        self._progress.rewind(self.state.progress.step)

    @property
    def is_evaluated(self) -> bool:
        """Whether the current step has been evaluated."""
        return self.state.best.latest_step == self.state.progress.step

    @property
    def is_saved(self) -> bool:
        """Whether the current state has been saved, or is being saved."""
        return self.saving.step == self.state.progress.step

    @property
    def is_best(self) -> bool:
        """Whether the current step is the best so far."""
        return self.state.best.best_step == self.state.progress.step

    def print_line(self, text: str) -> None:
        """Print a line to the progress display."""
        self._progress.print_line(text)

    def end(self, status: str, **more: Any) -> None:
        """Write how the run ended: finished, stopped or failed.

        Without this call, `close()` writes it.
        """
        self._has_end = True
        self.saving.wait()
        figures = {**summarize_run(self.plan, self.state, self.timed, status), **more}
        found = self._findings(status)
        write_summary(
            self._recorder, status, {**figures, "findings": [asdict(each) for each in found]}
        )
        for each in found:
            self.print_line(f"Note ({each.rule}): {each}")

    def _findings(self, status: str) -> list[Finding]:
        """Return findings to print; rank 0 returns those of all ranks."""
        if not self.loop.world.is_first:
            return []
        finished = status == "finished"
        return find(Case(self.loop, self.task, self.observed, self._facts, is_finished=finished))

    def close(self) -> None:
        """Unlock the run folder and restore every module's mode; a second call does nothing.

        It first writes how the run ended, unless `end()` did: "finished" if all steps are done,
        "failed" if an error left the `with` block, otherwise "stopped" and resumable.
        """
        if self.closed:
            return
        self.closed = True
        with ExitStack() as stack:  # each of these, even if others fail
            stack.callback(self._recorder.close)
            stack.callback(self._settings.close)
            for steps in self._open:  # the traceback of an error may still reference one
                stack.callback(steps.close)
            stack.callback(self.loop.loader.close)
            stack.callback(self._gauge.close)
            stack.callback(self._progress.close)
            stack.push(self._end_once)
            stack.callback(self.saving.wait)
            for callback in self.loop.callbacks:
                stack.callback(callback.on_end, self.state)
            if self.state.counts.skipped:
                stack.callback(self._recorder.write_skipped)
            stack.callback(self.loop.log_point)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.loop.world.failed(error)
        self.loop.is_failing = error is not None
        self._error = error
        if error is not None and not self.closed:
            self._call_on_exception(error)
        try:
            self.close()
        except SurestepError as late:
            if error is None:
                raise
            error.add_note(f"While closing: {late}")  # what ended the run is what to be told

    def _end_once(self, kind: object, late: BaseException | None, traceback: object) -> None:
        """Write how the run ended, if it was not written; `late` was raised while closing."""
        if self._has_end or self.finished:
            return
        status, reason = end_of_loop(self.loop, self._error or late, own=self._has_own_steps)
        self.end(status, reason=reason, **({"resumable": True} if status == "stopped" else {}))

    def _call_on_exception(self, error: BaseException) -> None:
        for callback in self.loop.callbacks:
            try:
                callback.on_exception(self.state, error)
            except Exception as late:  # the error that ended the run is the one to raise
                kind = type(callback).__name__
                error.add_note(f"{kind}.on_exception failed: {type(late).__name__}: {late}")

    def _log(self, point: LogPoint) -> None:
        self.timed.add(point)
        self.observed(point)
        self._recorder.steps(point)
        self.saving.collect(together=not self.closed)
        self._progress.log(point)
        for skip in point.skips:
            self._recorder.skipped(skip, sample_indices(self.loop.loader, skip))
        for notice in self.loop.notices:
            if (text := notice()) is not None:
                self._recorder.event("notice", step=point.progress.step, text=text)
                self.print_line(text)

    def _notice_once(self, text: str) -> None:
        """Record and print a text, once."""
        if text not in self._noticed:
            self._noticed.add(text)
            self._recorder.event("notice", step=self.state.progress.step, text=text)
            self.print_line(text)


def check_open(folder: Path, *, closed: bool) -> None:
    """Check that the run folder is still held.

    Raises:
        RunError: the session is closed.
    """
    if closed:
        raise RunError(
            f"The session of {folder} is closed: it takes no step, measures nothing and saves "
            "nothing. Go on with another: prepare(task, config, run=...), or trainer.fit(). Its "
            "checkpoints are measured by trainer.evaluate('val')."
        )


def check_train_step(plan: Plan, micro_batches: Sequence[Any]) -> None:
    """Check that a step can be taken on batches of the user's own.

    Raises:
        ConfigError: there are none, or the run needs those of the training data.
    """
    if not micro_batches:
        raise ConfigError("train_step() got no micro-batches. Give a list of at least one.")
    if plan.batch_transform is not None and plan.parallel_ranks > 1:
        raise ConfigError(
            f"batch_transform={plan.batch_transform} mixes the batch of all {plan.parallel_ranks} "
            "ranks, and train_step() is given that of one. Train by steps(), or start one process."
        )
    if plan.on_spike == "rollback":
        raise ConfigError(
            "on_spike='rollback' leaves out batches of the training data, and train_step() is "
            "given its own. Say on_spike='warn', or train by steps()."
        )
