"""The steps since the last log point, which are read from the device together."""

import itertools
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from surestep.config.duration import PeriodicTrigger
from surestep.engine.batch import Batch
from surestep.engine.plan.plan import Plan
from surestep.engine.step.log_point import (
    LayerNorms,
    LogPoint,
    SkippedStep,
    is_fatal,
    nonfinite_error,
    read_logged,
    read_scalars,
    skipped_step,
)
from surestep.engine.step.part import Parts
from surestep.engine.step.train_step import StepContext, StepResult


class StepLog:
    """Collects steps, and reads their values at a log point, which the parts of the run get.

    Args:
        context: of a step.
        plan: the resolved options.
        parts: of the run; they have values to read, and get the log points.

    Attributes:
        pending: the steps since the last log point.
        data_wait_s: how long the steps of this process waited for data.
        next_look: the first step at which a log point may be due.
    """

    def __init__(self, context: StepContext, plan: Plan, parts: Parts) -> None:
        self._context, self._plan, self._parts = context, plan, parts
        self._world = context.strategy.world
        self.data_wait_s = self._reported_wait_s = 0.0
        self.pending: list[StepResult] = []
        self._skips: list[SkippedStep] = []
        self._cadence = PeriodicTrigger(plan.logging_every, plan.steps_per_epoch)
        self.next_look = 0
        self.start_clock()

    def start_clock(self) -> None:
        """Count the time of the next steps from now on."""
        self._clock = time.perf_counter()

    def count_from_here(self) -> None:
        """Schedule the next log point from the current progress."""
        progress = self._context.state.progress
        self._cadence.start(progress.items, self._world.seconds)
        self.next_look = self._cadence.next_check_step(progress.step)

    def may_be_due_after(self, batch: Batch) -> bool:
        """Return whether a log point may be due after the step on this batch."""
        step = self._context.state.progress.step + 1
        return step >= self.next_look or batch.ends_epoch or step >= self._plan.total_steps

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Leave an evaluation or a save out of the time of the steps that a log point reports."""
        before = time.perf_counter() - self._clock
        try:
            yield
        finally:
            self._clock = time.perf_counter() - before

    def note_skip(self, result: StepResult, batch: Batch) -> None:
        """Note that a step was skipped."""
        self._skips.append(skipped_step(result, batch))

    def blame(self, positions: tuple[int, ...] | None) -> None:
        """Note the samples that caused the last skip, if known."""
        self._skips[-1] = self._skips[-1]._replace(guilty=positions)

    def take_if_due(self, *, force: bool = False) -> bool:
        """Take a log point if one is due; return whether it was."""
        state = self._context.state
        place = state.progress
        due = self._cadence.is_due(place.step, place.items, self._world.seconds) or force
        if due:
            self.take()
            self._parts.call("on_due")
        self.next_look = self._cadence.next_check_step(state.progress.step)
        return due

    def take(self) -> None:
        """Read the values of the steps since the last log point from the device.

        Raises:
            NonFiniteError: a step's loss or gradient was not finite.
        """
        if not self.pending:
            return
        state = self._context.state
        pending, self.pending = self.pending, []
        n = len(pending)
        asked = [tensors() for tensors in self._parts.hooks("to_read")]
        values = read_scalars(
            [
                *(r.loss_sum for r in pending),
                *(None if r.norms is None else r.norms.total for r in pending),
                *itertools.chain(*asked),
            ]
        )
        losses, norms, others = values[:n], values[n : 2 * n], iter(values[2 * n :])
        layers = None
        for tensors, on_read in zip(asked, self._parts.hooks("on_read"), strict=True):
            layers = on_read(list(itertools.islice(others, len(tensors)))) or layers
        means = [
            None if loss is None else loss / result.divisor
            for loss, result in zip(losses, pending, strict=True)
        ]
        steps = zip(pending, means, norms, strict=True)
        bad = next((i for i, step in enumerate(steps) if is_fatal(*step)), len(pending))
        if bad < len(pending):
            self._undo(pending[bad:])
        place = state.progress
        self._report(pending[:bad], means[:bad], norms[:bad], layers)
        if bad < len(pending) and state.progress is place:  # the run was not rolled back
            result = pending[bad]
            error = nonfinite_error(result, means[bad], self._plan)
            raise self._parts.explain(error, result) or error

    def _undo(self, undone: list[StepResult]) -> None:
        """Restore what is counted to the state before the first of these steps."""
        state = self._context.state
        state.progress = undone[0].progress_before
        if (numbers := undone[0].numbers_before) is not None:
            numbers.restore()
        counts = state.counts
        counts.after_spike -= sum(result.samples == 0 for result in undone)
        counts.no_items -= sum(result.norms is None and result.samples > 0 for result in undone)
        if (average := state.average) is not None:
            for result in undone:
                if not result.outcome.took_step:
                    average.undo_skip(result.step)
        self._context.strategy.reset_guard()

    def _report(
        self,
        results: list[StepResult],
        losses: list[float | None],
        norms: list[float | None],
        layers: LayerNorms | None,
    ) -> None:
        skips, self._skips = self._skips, []
        if not results:
            return
        state, limit = self._context.state, self._plan.max_grad_norm
        if limit is not None:
            state.counts.clipped += sum(
                norm is not None and limit < norm < math.inf and result.outcome.took_step
                for norm, result in zip(norms, results, strict=True)
            )
        now = time.perf_counter()
        own_s, self._clock = now - self._clock, now
        gone = self._world.is_failing
        logged, seconds = read_logged(results, own_s, self._world, gone=gone)
        wait_s = self.data_wait_s - self._reported_wait_s
        self._reported_wait_s = self.data_wait_s
        point = LogPoint(
            first_step=results[0].step,
            epoch=results[-1].epoch,
            loss=losses,
            grad_norm=norms,
            lr=[result.lr for result in results],
            logged=logged,
            samples=sum(result.samples for result in results),
            items=sum(result.items for result in results),
            seconds=seconds,
            data_wait_s=wait_s,
            progress=state.progress,
            progress_before=[result.progress_before for result in results],
            skips=[skip for skip in skips if skip.step <= results[-1].step],
            layers=layers if layers is not None and layers.step <= results[-1].step else None,
        )
        self._parts.call("on_log", point)
