"""The evaluations of a session, and what they change: the best metric and the plateaus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from surestep.engine.evaluate.predict import Predictions
from surestep.engine.plan.specs import raw_name
from surestep.engine.state.average import AveragedWeights
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task
from surestep.engine.value import Metrics, Value, shown
from surestep.record.checkpoint.reader import CheckpointInfo
from surestep.record.run import Which
from surestep.record.run_writer import RunWriter
from surestep.trainer.best_metric import update_best
from surestep.trainer.checkpointing import CheckpointManager
from surestep.trainer.evaluator import Evaluator, Fitting
from surestep.trainer.messages import Messages

if TYPE_CHECKING:  # only with report.samples
    from surestep.engine.evaluate.collect_predictions import PredictionCollector


class Evaluations:
    """Evaluates and predicts for a session; its methods are those of `Session`.

    Attributes:
        collectors: of the newest evaluation of all validation sets, by set; empty if
            `report.samples` is not set.
        collected: the weights that they are of.
    """

    def __init__(
        self,
        loop: Loop,
        task: Task,
        evaluator: Evaluator,
        recorder: RunWriter,
        saving: CheckpointManager,
        messages: Messages,
    ) -> None:
        self._loop, self._task, self._evaluator = loop, task, evaluator
        self._recorder, self._saving, self._messages = recorder, saving, messages
        self._plan = loop.plan
        self.collectors: Mapping[str, PredictionCollector] = {}
        self.collected: Literal["weights", "average"] = "weights"

    @property
    def is_done(self) -> bool:
        """Whether the current step has been evaluated."""
        state = self._loop.state
        return state.best.latest_step == state.progress.step

    def evaluate(self, split: str | None) -> Metrics:
        """Evaluate one split, or all validation sets: these may be the best so far."""
        loop, plan, state = self._loop, self._plan, self._loop.state
        loop.log.take()
        self._evaluator.check(split)
        began = time.perf_counter()
        with loop.log.pause_clock():
            step, average = state.progress.step, self._average()
            most = plan.report_samples or 0
            sets = self._task.val_sets() if most and split is None else ()
            collectors = _make_collectors(loop, most, sets)
            metrics = self._evaluate_weights(split, average, collectors)
        monitored = (plan.validation_metric or "").split("/")[0]
        is_raw = average is None or (
            plan.validation_weights == "both" and monitored in map(raw_name, self._task.val_sets())
        )
        measured: Literal["weights", "average"] = "weights" if is_raw else "average"
        self._record(began, step=step, metrics=metrics, measured=measured)
        if metrics:
            limit = plan.limit_val_batches
            of = " of the average" if average is not None else ""
            if limit and split in (None, *self._task.val_sets()):
                of += f" on {limit} batches"
            self._messages.print_line(f"step {step}{of}: {shown(metrics)}")
        if split is None and not self.is_done:
            best = state.best
            best.latest, best.latest_step, best.measured = dict(metrics), step, measured
            best.is_due = False
            self.collectors = collectors
            self.collected = "weights" if average is None else "average"
            self._saving.forget()  # a checkpoint of this step does not have the metrics
            for line in update_best(plan, state, metrics, loop.context.schedule.peak):
                self._messages.print_line(line)
            for hook in loop.parts.hooks("on_evaluate"):  # none sees what another one changes
                loop.react(hook(state, Metrics(metrics)))
        loop.run_requests()
        return Metrics(metrics)

    def _record(self, began: float, **fields: Any) -> None:
        """Write an evaluation to the events, with its seconds; they were not recorded before."""
        seconds = round(time.perf_counter() - began, 4)
        self._recorder.event("evaluation", **fields, seconds=seconds)

    def _average(self) -> AveragedWeights | None:
        """Return the average that evaluations use; None if they use the weights."""
        return None if self._plan.validation_weights == "raw" else self._evaluator.average()

    def _evaluate_weights(
        self,
        split: str | None,
        average: AveragedWeights | None,
        collectors: Mapping[str, PredictionCollector],
    ) -> dict[str, Value]:
        """Evaluate the average, and also the weights if the Plan says so."""
        warn = self._messages.notify_once
        with nullcontext() if average is None else average.swapped_in():
            metrics = raw = self._evaluator.evaluate(split, warn, collectors)
        if self._plan.validation_weights != "both":
            return metrics
        if average is not None:
            raw = self._evaluator.evaluate(split, warn)
        for name, value in raw.items():
            own, metric = name.split("/", 1)
            metrics = metrics | {f"{raw_name(own)}/{metric}": value}
        return metrics

    def evaluate_checkpoint(self, split: str, which: Which) -> Metrics:
        """Evaluate all of a split with the weights of a checkpoint."""
        self._evaluator.check(split)
        using = self._using_checkpoint(which)
        began = time.perf_counter()
        with self._loop.log.pause_clock(), using as saved:
            metrics, samples = self._evaluator.evaluate_all(split, self._messages.notify_once)
        self._record(began, step=saved.step, metrics=metrics, which=which)
        where = f"{which} checkpoint, step {saved.step}, {samples} samples of {split}"
        self._messages.print_line(f"{where}: {shown(metrics)}")
        return Metrics(metrics)

    def _using_checkpoint(self, which: Which) -> AbstractContextManager[CheckpointInfo]:
        self._saving.collect(wait=True)  # the checkpoint may still be written
        return self._evaluator.using_checkpoint(self._recorder.run, which)

    def predict(self, split: str, which: Which | None, mc_dropout: int | None) -> Predictions:
        """Predict every sample of one split."""
        with self._loop.log.pause_clock():
            if which is not None:
                with self._using_checkpoint(which):
                    return self._evaluator.predict(split, mc_dropout)
            with self._using_average():
                return self._evaluator.predict(split, mc_dropout)

    def predict_inputs(self, data: Any) -> Predictions:
        """Predict for inputs outside the splits, with the weights that evaluations use.

        Args:
            data: a tuple of tensors, or a dict of them by the names of arguments of the model.
        """
        with self._loop.log.pause_clock(), self._using_average():
            return self._evaluator.predict_inputs(data)

    def _using_average(self) -> AbstractContextManager[Any]:
        average = self._average()
        return nullcontext() if average is None else average.swapped_in()

    def fit_memory(self, fitting: Fitting) -> None:
        """Evaluate in batches that fit in memory; note now where each validation set starts.

        Args:
            fitting: as `Evaluator.fitting`.
        """
        self._evaluator.fitting = fitting
        for name in self._task.val_sets():
            fitting(self._evaluator.loaders[name])

    def close(self) -> None:
        """End the workers of the validation data."""
        self._evaluator.close()


def _make_collectors(loop: Loop, most: int, sets: Iterable[str]) -> dict[str, PredictionCollector]:
    """Return what collects the predictions of each validation set."""
    if not most:
        return {}
    from surestep.engine.evaluate.collect_predictions import PredictionCollector

    return {name: PredictionCollector(loop.context.loss, most) for name in sets}
