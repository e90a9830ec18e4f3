"""The generator of steps: epochs, log points, requests, interruption."""

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import WorkerError
from surestep.config.duration import PeriodicTrigger
from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.failures import explain_target
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.distributed.communicator import WORDS, WORKER_DIED
from surestep.engine.model.forward_errors import explain_single
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback, Reply, Request, Rollback, Stop
from surestep.engine.step.gc import manual_gc
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
from surestep.engine.step.part import Moments, find_moments, time_moments
from surestep.engine.step.train_step import StepContext, StepResult, train_step

_REASONS = {"pause": "a callback asked to pause", "max_time": "max_time is over"}


class Loop:
    """Steps over a batch loader, and calls the parts of the run at their moments.

    Attributes:
        context: of a step.
        loader: of the training data.
        plan: the resolved options.
        parts: what acts beside the step, in order; none before `attach()`.
        stopping: why the loop stops after this step; None while it continues.
        interrupted: why the run pauses after this step, such as "Ctrl-C".
        data_wait_s: how long the steps of this process waited for data.
        ends_epoch: the last step of `steps()` was the last of its epoch.
    """

    def __init__(self, context: StepContext, loader: BatchLoader, plan: Plan) -> None:
        self.context, self.loader, self.plan = context, loader, plan
        self.world = context.strategy.world
        self.parts: Sequence[Callback] = ()
        self.stopping: str | None = None
        self.interrupted = ""
        self.data_wait_s = self._reported_wait_s = 0.0
        self.ends_epoch = False
        self._pending: list[StepResult] = []
        self._skips: list[SkippedStep] = []
        self._clock = time.perf_counter()
        self._cadence = PeriodicTrigger(plan.logging_every, plan.steps_per_epoch)
        self._next_look = 0
        self._started = self._doing = self._is_stepping = False
        self._asked: list[Request] = []
        self._worker_error: WorkerError | None = None
        self._after_step: Callable[[], object] | None = None
        self.attach((), notify=lambda text: None)

    def attach(self, parts: Sequence[Callback], notify: Callable[[str], None]) -> None:
        """Call these parts from now on.

        Args:
            parts: of the run, in order.
            notify: shows the user a notice of a part.
        """
        self.parts, self._notify = parts, notify
        self._use(find_moments(parts, self.plan.seed, self.plan.device))
        self._on_first_step = self._moments["on_first_step"]

    def _use(self, moments: Moments) -> None:
        self._moments = moments
        self._on_batch, self._on_step = moments["on_batch"], moments["on_step"]
        self.context.on_backward = [
            partial(self._call_backward, hook) for hook in moments["on_backward"]
        ]

    def time_parts(self) -> tuple[dict[str, float], Callable[[], None]]:
        """Measure how long each part takes from now on.

        Returns:
            The seconds by part, which are updated, and a function that ends the measurement.
        """
        seconds: dict[str, float] = {}
        before = self._moments
        self._use(time_moments(before, self.parts, seconds))
        return seconds, partial(self._use, before)

    def hooks(self, moment: str) -> list[Callable[..., Any]]:
        """Return what to call at a moment, in order."""
        return self._moments[moment]

    def call(self, moment: str, *args: Any) -> None:
        """Call the parts that have a moment, in order; do later what they request."""
        for hook in self._moments[moment]:
            self.note(hook(self.state, *args))

    @property
    def state(self) -> State:
        """Everything that changes."""
        return self.context.state

    def steps(self, *, is_fit: bool = False) -> Generator[StepResult, None, None]:
        """Train from the progress of the state to the end of the run, and yield after each step.

        If you leave the loop early, the state can be saved and resumed.

        Args:
            is_fit: call `on_between`, at which the run is evaluated and saved.

        Raises:
            NonFiniteError: at the log point after a loss or gradient that is not finite; the state
                is then the one before that step.
            WorkerError: a data worker died, here or on another rank; the state is that of a step.
        """
        end, state = self.plan.total_steps, self.state
        self.start()
        with manual_gc() as collect:
            self._clock = time.perf_counter()
            self._count_from_here()
            while self.state.progress.step < end and self.stopping is None:
                asked = time.perf_counter()
                for batch in self.loader.batches(
                    self.state.progress.epoch, self.state.progress.position
                ):
                    self.data_wait_s += time.perf_counter() - asked
                    if state.spikes.skipped_steps:
                        batch = state.spikes.filter_batch(batch, state.progress.step + 1)
                    result = self.step(batch)
                    place, self.ends_epoch = state.progress, batch.ends_epoch
                    ends = self.ends_epoch or place.step >= end or self.stopping is not None
                    if (ends or place.step >= self._next_look) and self.maybe_log(force=ends):
                        collect(2 if ends else 1)
                        self.run_requests()
                    for hook in (
                        self._moments["on_between"] if is_fit and state.progress is place else ()
                    ):
                        hook(state, result)
                        if state.progress is not place:
                            break
                    if state.progress.step != result.step:
                        break  # the run was rolled back
                    yield result
                    if state.progress is not place:
                        break  # other progress was loaded while the caller had control
                    if place.step >= end or self.stopping is not None:
                        self.check_workers()
                        return
                    asked = time.perf_counter()
                else:
                    place = self.state.progress
                    if place.position:  # this epoch has no more batches
                        self.state.progress = place._replace(epoch=place.epoch + 1, position=0)

    def _count_from_here(self) -> None:
        """Schedule the next log point from the current progress."""
        self._cadence.start(self.state.progress.items, self.world.seconds)
        self._next_look = self._cadence.next_check_step(self.state.progress.step)

    def step(self, batch: Batch) -> StepResult:
        """Take one step on a batch that is on the device, and call the callbacks."""
        if not self._started:
            self.start()
        state = self.context.state
        for hook in self._on_batch:
            if (reply := hook(state, batch)) is not None:
                self.note(reply)
        self._is_stepping = True
        try:
            result = train_step(self.context, batch)
        except (IndexError, RuntimeError, MemoryError, ValueError) as error:
            explained = self._explain(error, batch)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._is_stepping = False
        self._pending.append(result)
        outcome = result.outcome
        if self._on_first_step and outcome.took_step:
            first, self._on_first_step = self._on_first_step, []
            for hook in first:
                hook(state)
        if self.world.agreed:
            self.apply_agreed_requests()
        place = state.progress
        if not outcome.took_step:
            self._skips.append(skipped_step(result, batch))
        if outcome.nonfinite:
            self._check_skip(result, batch)
        if state.progress is not place:  # the run was rolled back
            return result
        for hook in self._on_step:
            if (reply := hook(state, result)) is not None:
                self.note(reply)
        if self._asked:
            self.run_requests()
        if self._after_step is not None:
            function, self._after_step = self._after_step, None
            function()
        return result

    def _explain(self, error: Exception, batch: Batch) -> Exception:
        """Return the error to raise for one of a step; it may be the same."""
        explained: Exception | None = None
        if isinstance(error, IndexError):
            where = f"step {self.state.progress.step + 1} of epoch {batch.epoch + 1}"
            order = self._order_of(batch)
            explained = explain_target(error, batch.micro_batches, order, where)
        elif isinstance(error, ValueError):
            explained = explain_single(error, batch.samples)
        else:
            explained = self.ask_parts(error) or self.world.explain_error(error)
        return error if explained is None else explained

    def ask_parts(
        self, error: Exception, place: StepResult | int | None = None
    ) -> Exception | None:
        """Return the error to raise instead of one, by the first part that knows better.

        Args:
            error: of a step or an evaluation.
            place: what the step did, if it ended; the batch size of the evaluation.
        """
        found = (hook(self.state, error, place) for hook in self._moments["on_error"])
        return next(filter(None, found), None)

    def after_step(self, function: Callable[[], object]) -> None:
        """Call a function once, after the step that is being taken, or now if none is."""
        if self._is_stepping:
            self._after_step = function
        else:
            function()

    def _order_of(self, batch: Batch) -> Tensor | None:
        """Return the index of the sample at each position; empty for batches of `train_step()`."""
        if batch.end == batch.position or isinstance(self.loader.source, StreamLoader):
            return torch.empty(0)
        return self.loader.epoch_order(batch.epoch)

    def start(self) -> None:
        """Call `on_start` of the callbacks, once, before the first step of this process."""
        if not self._started:
            self._started = True
            self.call("on_start")
            for schedule in self.state.schedules.values():
                schedule.start(self.state.progress.steps_taken)
            if self.world.size > 1:  # as one process, which does not wait for a step either
                self.world.exchange(())
                self.apply_agreed_requests()
            self.run_requests()

    def note(self, reply: Reply) -> None:
        """Show the notice of a part now, and do what it requests after the step.

        Args:
            reply: what the part returned.
        """
        if reply is None:
            return
        if isinstance(reply, Request):
            self.request(reply.value)
        elif isinstance(reply, Stop):  # every rank has it
            self.stopping = reply.reason
        elif isinstance(reply, Rollback):
            reply.load()
            self._continue_from_checkpoint()
        else:
            self._notify(reply)

    def request(self, word: str) -> None:
        """Do what a word of `WORDS` says after this step; several ranks do it after the next.

        Before the first step it is done on `start()`.
        """
        if self.world.size > 1:
            self.world.requests.add(word)
        else:
            self._apply(word)

    def _apply(self, word: str) -> None:
        if word == Request.STOP.value:
            self.stopping = "a callback asked to stop"
        elif word in (Request.SAVE.value, Request.EVALUATE.value):
            self._asked.append(Request(word))
        else:
            self.interrupted = _REASONS.get(word, word)
            self.stopping = self.stopping or self.interrupted

    def stop_together(self, error: WorkerError) -> bool:
        """Request that all ranks stop because a data worker died; return whether to start new ones.

        The step at which the ranks agree needs a batch of each of them.
        """
        if self.world.size == 1 or self._worker_error is not None:
            return False
        self._worker_error = error
        self.request(WORKER_DIED)
        return True

    def check_workers(self) -> None:
        """Check that no rank stopped for a data worker that died.

        Raises:
            WorkerError: one did.
        """
        if self.interrupted == WORKER_DIED:
            raise self._worker_error or WorkerError("A data worker of another rank died.")

    def apply_agreed_requests(self) -> None:
        """Apply what one of the ranks requested from all of them."""
        agreed, self.world.agreed = self.world.agreed, set()
        for word in WORDS:
            if word in agreed:
                self._apply(word)

    def run_requests(self) -> None:
        """Do what callbacks requested, once each; requests made meanwhile wait for a step."""
        if self._asked and not self._doing:
            self.log_point()  # a bad step that is not read yet undoes requests
            asked, self._asked = dict.fromkeys(self._asked), []
            self._doing = True
            try:
                for request in asked:
                    for hook in self._moments["on_request"]:
                        hook(self.state, request)
            finally:
                self._doing = False

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Leave an evaluation or a save out of the time of the steps that a log point reports."""
        before = time.perf_counter() - self._clock
        try:
            yield
        finally:
            self._clock = time.perf_counter() - before

    def log_point(self) -> None:
        """Read the values of the steps since the last log point from the device.

        Raises:
            NonFiniteError: a step's loss or gradient was not finite.
        """
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        n = len(pending)
        asked = [tensors() for tensors in self._moments["to_read"]]
        values = read_scalars(
            [
                *(r.loss_sum for r in pending),
                *(None if r.norms is None else r.norms.total for r in pending),
                *itertools.chain(*asked),
            ]
        )
        losses, norms, others = values[:n], values[n : 2 * n], iter(values[2 * n :])
        layers = None
        for tensors, on_read in zip(asked, self._moments["on_read"], strict=True):
            layers = on_read(list(itertools.islice(others, len(tensors)))) or layers
        means = [
            None if loss is None else loss / result.divisor
            for loss, result in zip(losses, pending, strict=True)
        ]
        steps = zip(pending, means, norms, strict=True)
        bad = next((i for i, step in enumerate(steps) if is_fatal(*step)), len(pending))
        if bad < len(pending):
            self.state.progress = pending[bad].progress_before
            counts, undone = self.state.counts, pending[bad:]  # steps after the first bad one
            counts.after_spike -= sum(result.samples == 0 for result in undone)
            counts.no_items -= sum(result.norms is None and result.samples > 0 for result in undone)
            if (average := self.state.average) is not None:
                for result in undone:
                    if not result.outcome.took_step:
                        average.undo_skip(result.step)
            self.context.strategy.reset_guard()
        place = self.state.progress
        self._report(pending[:bad], means[:bad], norms[:bad], layers)
        if bad < len(pending) and self.state.progress is place:  # the run was not rolled back
            result = pending[bad]
            error = nonfinite_error(result, means[bad], self.plan)
            raise self.ask_parts(error, result) or error

    def may_log_after(self, batch: Batch) -> bool:
        """Return whether a log point may be due after the step on this batch."""
        step = self.state.progress.step + 1
        return step >= self._next_look or batch.ends_epoch or step >= self.plan.total_steps

    def _continue_from_checkpoint(self) -> None:
        self._count_from_here()
        for schedule in self.state.schedules.values():
            schedule.show(self.state.progress.steps_taken)
        self._asked = []
        self.context.strategy.reset_guard()
        if not self.interrupted:
            self.stopping = None  # it was requested by a step that is undone
        self.call("on_rollback")

    def maybe_log(self, *, force: bool = False) -> bool:
        """Take a log point if one is due; return whether it was."""
        place = self.state.progress
        due = self._cadence.is_due(place.step, place.items, self.world.seconds) or force
        if due:
            self.log_point()
            self.call("on_due")
        self._next_look = self._cadence.next_check_step(self.state.progress.step)
        return due

    def _check_skip(self, result: StepResult, batch: Batch) -> None:
        """Fail now if the host knows that a step was not finite, and it must not be skipped."""
        counts = self.state.counts
        if self.plan.on_nonfinite == "skip" and counts.nonfinite <= self.plan.max_nonfinite_steps:
            for hook in self._moments["on_skip"]:
                guilty = hook(self.state, result, batch)
                self._skips[-1] = self._skips[-1]._replace(guilty=guilty)
            return
        counts.nonfinite -= 1
        result.is_fatal = True
        self.log_point()

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
        limit = self.plan.max_grad_norm
        if limit is not None:
            self.state.counts.clipped += sum(
                norm is not None and limit < norm < math.inf and result.outcome.took_step
                for norm, result in zip(norms, results, strict=True)
            )
        now = time.perf_counter()
        own_s, self._clock = now - self._clock, now
        logged, seconds = read_logged(results, own_s, self.world, gone=self.world.is_failing)
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
            progress=self.state.progress,
            progress_before=[result.progress_before for result in results],
            skips=[skip for skip in skips if skip.step <= results[-1].step],
            layers=layers if layers is not None and layers.step <= results[-1].step else None,
        )
        self.call("on_log", point)

    def _call_backward(self, hook: Callable[[State], Reply], state: State) -> None:
        self.note(hook(state))
