"""A Session: a run that is open. Steps, evaluations, checkpoints, and what is shown of them."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import nn

from surestep.base.errors import SurestepError
from surestep.engine.average import Average, raw_name
from surestep.engine.callback import Request
from surestep.engine.evaluation.predict import Predictions
from surestep.engine.facts import Facts
from surestep.engine.log_point import LogPoint
from surestep.engine.loop import Loop
from surestep.engine.plan import Plan
from surestep.engine.state import State
from surestep.engine.step import StepResult
from surestep.engine.task import Task
from surestep.engine.value import Value, shown
from surestep.record.checkpoint.opened import Opened
from surestep.record.checkpoint.snapshot import check_can_be_saved
from surestep.record.progress import Bar, Plain, Quiet
from surestep.record.recorder import Recorder
from surestep.record.run import Run, Which
from surestep.trainer.ending import Timed, end_of_loop, figures_of, write_end
from surestep.trainer.findings import Case, Finding, find
from surestep.trainer.gauge import Gauge
from surestep.trainer.incident import Incidents
from surestep.trainer.judge import judge
from surestep.trainer.observed import Observed
from surestep.trainer.refusals import check_open, check_own
from surestep.trainer.saving import Saving
from surestep.trainer.shortage import out_of_memory
from surestep.trainer.skipping import record_skips
from surestep.trainer.together import behind_others, loaded


class Session:
    """A run that is open, from `prepare()` to `close()`; a context manager.

    Attributes:
        plan: what was decided.
        task: what is trained.
        loop: the generator of steps.
        finished: the folder holds a run that is done; there are no steps left.
        closed: `close()` was called; no steps, evaluations or saves any more.
        incidents: what becomes of a step that is not finite.
        saving: saves without waiting for the disk.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        loop: Loop,
        gauge: Gauge,
        recorder: Recorder,
        settings: ExitStack,
        facts: Facts,
    ) -> None:
        self.plan = plan
        self.task = task
        self.loop = loop
        self.finished = self.closed = False
        self._has_end = self._has_own_steps = False
        self._error: BaseException | None = None  # that left the `with` block
        self.timed = Timed()
        self.observed = Observed(loop.state.model, plan)
        self._facts = facts
        self._gauge = gauge
        self._recorder = recorder
        self._settings = settings
        self._open: WeakSet[Generator[StepResult, None, None]] = WeakSet()
        self._noticed: set[str] = set()
        self._progress: Quiet | Plain | Bar = Quiet()
        self.saving = Saving(recorder, loop, gauge, self.say)
        loop.on_log.append(self._log)
        loop.after_first.append(partial(check_can_be_saved, loop.state))
        loop.act = {Request.SAVE: self.saving.begin, Request.EVALUATE: self.evaluate}
        self.incidents = Incidents(loop, recorder, self.save_once, self.say)
        loop.out_of_memory = partial(out_of_memory, recorder, loop)

    def open(
        self, progress: Quiet | Plain | Bar, checkpoint: Path | None, *, finished: bool
    ) -> None:
        """Begin to show what happens; `prepare()` calls this once."""
        self._progress, self.finished = progress, finished
        if checkpoint is not None:
            self.saving.step, self.saving.path = self.state.place.step, checkpoint

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
        """The only optimizer; several are in `state.optimizers`, by name."""
        return self.loop.state.optimizer

    @property
    def metadata(self) -> dict[str, Any]:
        """Your own words, as JSON can hold them; saved with each checkpoint."""
        return self.loop.state.metadata

    @property
    def run(self) -> Run:
        """The run folder, to read from."""
        return self._recorder.run

    def steps(self) -> Iterator[StepResult]:
        """Train from where the run stands to its end, yielding after each step.

        Break out whenever you like; `save()`, `evaluate()` and another `steps()` go on from there.

        Raises:
            NonFiniteError: the loss or a gradient was not finite; the state is the one before.
            RunError: the session is closed.
        """
        check_open(self._recorder.folder, closed=self.closed)
        if self.finished:
            return iter(())
        self._open.add(steps := self.loop.steps())
        return steps

    def train_step(self, micro_batches: Sequence[Any]) -> StepResult:
        """Take one step on batches of your own, which together are the global batch.

        The place in the training data stays where it is.

        Args:
            micro_batches: batches as the Task's data gives them, of any sizes.

        Raises:
            ConfigError, RunError: there are none, or the session is closed.
        """
        check_open(self._recorder.folder, closed=self.closed)
        check_own(self.plan, micro_batches)
        feed, place = self.loop.feed, self.state.place
        batch = feed.batch_of(micro_batches, (place.epoch, place.position, place.position))
        if self.loop.world.size > 1:
            batch = behind_others(self.loop.world, batch)
        self.loop.own[place.step] = batch
        self._has_own_steps = True
        result = self.loop.step(feed.move(batch))
        self.loop.look()
        return result

    def evaluate(self, part: str | None = None) -> dict[str, Value]:
        """Measure the loss and the metrics; by "set/metric".

        Args:
            part: a validation set's name, "train" or "test"; None measures all validation sets,
                and then the standing of the run (best, patience) moves.

        Raises:
            ConfigError, RunError: there is no such part, or the session is closed.
        """
        check_open(self._recorder.folder, closed=self.closed)
        self.loop.log_point()
        self._gauge.check(part)
        step, average = self.state.place.step, self._average()
        metrics = self._measure_both(part, average)
        measured: Literal["weights", "average"] = "average"
        if average is None or self._is_judged_by_raw():
            measured = "weights"
        self._recorder.event("evaluation", step=step, metrics=metrics, measured=measured)
        if part is None and not self.is_evaluated:
            standing = self.state.standing
            standing.latest, standing.latest_step, standing.measured = metrics, step, measured
            standing.is_due = False
            self.saving.step = None  # a checkpoint of this step has not got that
            for said in judge(self.plan, self.state, metrics, self.loop.parts.peak_rates[0]):
                self.say(said)
            for callback in self.loop.callbacks:
                self.loop.ask(callback.on_evaluate(self.state, metrics))
        if metrics:
            of = " of the average" if average is not None else ""
            limit = self.plan.limit_val_batches
            parts = (
                f" on {limit} batches" if limit and part in (None, *self.task.val_sets()) else ""
            )
            self.say(f"step {step}{of}{parts}: {shown(metrics)}")
        self.loop.do_asked()
        return metrics

    def _average(self) -> Average | None:
        """Return the average that evaluations measure; None for the weights themselves."""
        return None if self.plan.validation_weights == "raw" else self._gauge.average()

    def _measure_both(self, part: str | None, average: Average | None) -> dict[str, Value]:
        """Measure the average, and the raw weights beside it if the Plan says so."""
        with nullcontext() if average is None else average.in_place():
            metrics = self._gauge.measure(part, self._notice_once)
        if self.plan.validation_weights != "both":
            return metrics
        raw = metrics
        if average is not None:
            raw = self._gauge.measure(part, self._notice_once)
        named = (name.split("/", 1) for name in raw)
        keys = [f"{raw_name(own)}/{metric}" for own, metric in named]
        return metrics | dict(zip(keys, raw.values(), strict=True))

    def _is_judged_by_raw(self) -> bool:
        judged = (self.plan.validation_metric or "").split("/")[0]
        raw = map(raw_name, self.task.val_sets())
        return self.plan.validation_weights == "both" and judged in raw

    def measure(self, part: str, which: Which) -> dict[str, Value]:
        """Measure a part with the weights of a checkpoint; the model's own are put back."""
        self._gauge.check(part)
        with self._gauge.holding(self.run, which) as saved:
            metrics = self._gauge.measure(part, self._notice_once)
        self._recorder.event("evaluation", step=saved.step, metrics=metrics, which=which)
        self.say(f"{which} checkpoint, step {saved.step}: {shown(metrics)}")
        return metrics

    def predict(
        self, part: str, which: Which | None = None, *, mc_dropout: int | None = None
    ) -> Predictions:
        """Return what the model says of each sample of a part, in the order of the data.

        Args:
            part: "train", "test" or a validation set's name.
            which: a checkpoint whose weights predict, the model's own being put back; None is the
                weights of this moment, or their average where there is one, as evaluations do.
            mc_dropout: passes with dropout on, for mean and spread; None is one without.

        Raises:
            ConfigError, TaskError: no such part, no dropout, or no row for each sample.
        """
        average = self._average() if which is None else None
        now = nullcontext() if average is None else average.in_place()
        with now if which is None else self._gauge.holding(self.run, which):
            return self._gauge.predict(part, mc_dropout)

    def save(self) -> Path:
        """Write a checkpoint of this moment; return its folder, which is there then.

        `saving.begin()` does not wait for the disk.

        Raises:
            CheckpointError: the disk is full or cannot be written; the older ones are untouched.
        """
        check_open(self._recorder.folder, closed=self.closed)
        return self.saving.now()

    def save_once(self) -> Path:
        """Write a checkpoint of this moment where there is none; return its folder."""
        self.saving.finish()
        return self._recorder.checkpoints / f"step-{self.state.place.step:08d}"

    def go_back(self, checkpoint: Opened) -> None:
        """Load an earlier checkpoint of this run, and go on from there."""
        loaded(self.loop.world, checkpoint, self.state)
        self.saving.step = None
        self.loop.go_back()
        self._progress.back(self.state.place.step)

    @property
    def is_evaluated(self) -> bool:
        """Whether this very step has been evaluated."""
        return self.state.standing.latest_step == self.state.place.step

    @property
    def is_saved(self) -> bool:
        """Whether this very step has been saved as it is now, or is being written."""
        return self.saving.step == self.state.place.step

    @property
    def is_best(self) -> bool:
        """Whether this very step is the best so far."""
        return self.state.standing.best_step == self.state.place.step

    def say(self, text: str) -> None:
        """Show a line to whoever watches."""
        self._progress.say(text)

    def end(self, status: str, **more: Any) -> None:
        """Write how the run ended: finished, stopped or failed.

        Without this call, `close()` writes it.
        """
        self._has_end = True
        self.saving.leave()
        figures = {**figures_of(self.plan, self.state, self.timed, status), **more}
        found = self._findings(status)
        write_end(self._recorder, status, {**figures, "findings": [asdict(each) for each in found]})
        for each in found:
            self.say(f"Note ({each.rule}): {each}")

    def _findings(self, status: str) -> list[Finding]:
        """Return what was measured and deserves a line; the first rank says it for all."""
        if not self.loop.world.is_first:
            return []
        finished = status == "finished"
        return find(Case(self.loop, self.task, self.observed, self._facts, is_finished=finished))

    def close(self) -> None:
        """Let the run folder go and put back every module's mode; a second call does nothing.

        It first writes how the run ended, unless `end()` did: "finished" if all steps are done,
        "failed" if an error left the `with` block, "stopped" and resumable in all other cases.
        """
        if self.closed:
            return
        self.closed = True
        with ExitStack() as stack:  # each of these, whatever becomes of the others
            stack.callback(self._recorder.close)
            stack.callback(self._settings.close)
            for steps in self._open:  # the traceback of an error may still hold one
                stack.callback(steps.close)
            stack.callback(self.loop.feed.close)
            stack.callback(self._gauge.close)
            stack.callback(self._progress.close)
            stack.push(self._end_once)
            stack.callback(self.saving.leave)
            for callback in self.loop.callbacks:
                stack.callback(callback.on_end, self.state)
            if self.state.counts.skipped:
                stack.callback(self._recorder.write_skipped)
            stack.callback(self.loop.log_point)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.loop.world.failed(error)
        self.loop.forsaken = error is not None
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
        """Write how the run ended if nothing else did; `late` was raised while closing."""
        if self._has_end or self.finished:
            return
        status, reason = end_of_loop(self.loop, self._error or late, own=self._has_own_steps)
        self.end(status, reason=reason, **({"can_go_on": True} if status == "stopped" else {}))

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
        record_skips(self._recorder, self.loop.feed, point.skips)
        for notice in self.loop.notices:
            if (text := notice()) is not None:
                self._recorder.event("notice", step=point.place.step, text=text)
                self.say(text)

    def _notice_once(self, text: str) -> None:
        """Record a text and show it, unless that was done before."""
        if text not in self._noticed:
            self._noticed.add(text)
            self._recorder.event("notice", step=self.state.place.step, text=text)
            self.say(text)
