"""The generator of steps: epochs, log points, requests, interruption."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import NonFiniteError, WorkerError
from surestep.config.duration import PeriodicTrigger
from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.failures import explain_target
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.device import ran_out
from surestep.engine.distributed.communicator import WORDS, WORKER_DIED
from surestep.engine.model.forward_errors import explain_single
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.callback import HOOKS, Callback, Request
from surestep.engine.step.gc import manual_gc
from surestep.engine.step.layer_norms import LayerNormMeter, LayerNorms
from surestep.engine.step.log_point import (
    LogPoint,
    SkippedStep,
    is_fatal,
    nonfinite_error,
    read_logged,
    read_scalars,
    skipped_step,
)
from surestep.engine.step.separate_draws import hooks_of
from surestep.engine.step.train_step import StepContext, StepResult, train_step

_REASONS = {"pause": "a callback asked to pause", "max_time": "max_time is over"}


@dataclass
class Loop:
    """Steps over a batch loader, with what happens between them.

    Attributes:
        on_log: called with each log point.
        notices: called at each log point; they return a message, or None.
        layer_norms: measures each layer in the steps after which a log point may be due.
        check_replicas: compares the copies of several ranks, at each log point that is due.
        handlers: do what callbacks request, by request.
        after_first: called once, after the first step that updated the parameters.
        out_of_memory: returns the error for a step that ran out of memory.
        explain: returns the error for a step that was not finite.
        blame: returns the positions of the samples for which a step is skipped, if known.
        manual_batches: batches passed to `train_step()` since the last log point, by step: they
            cannot be read again.
        stopping: why the loop stops after this step; None while it continues.
        interrupted: why the run pauses after this step, such as "Ctrl-C".
        deadline: pause after this, in seconds of `time.monotonic()`.
        signature: what the model takes and returns, if it was called with the first batch.
        worker_error: a data worker of this rank died, and the ranks stop together.
        is_stepping: a step is being taken; it must not be interrupted.
        stop: called once, after that step; it raises the error for a signal.
        rolled_back: an earlier checkpoint was loaded at the last log point.
        is_failing: this rank leaves by an error, of which the others may not know.
    """

    context: StepContext
    loader: BatchLoader
    plan: Plan
    callbacks: list[Callback] = field(default_factory=list)
    on_log: list[Callable[[LogPoint], None]] = field(default_factory=list)
    notices: list[Callable[[], str | None]] = field(default_factory=list)
    layer_norms: LayerNormMeter | None = None
    check_replicas: Callable[[], None] | None = None
    handlers: dict[Request, Callable[[], object]] = field(default_factory=dict)
    after_first: list[Callable[[], None]] = field(default_factory=list)
    out_of_memory: Callable[..., Exception] | None = None
    explain: Callable[[NonFiniteError, StepResult, dict[int, Batch]], NonFiniteError] | None = None
    blame: Callable[[StepResult, Batch], tuple[int, ...] | None] | None = None
    manual_batches: dict[int, Batch] = field(default_factory=dict)
    stopping: str | None = None
    interrupted: str = ""
    deadline: float | None = None
    signature: dict[str, Any] | None = None
    worker_error: WorkerError | None = None
    is_stepping: bool = False
    stop: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.world = self.context.strategy.world
        self._pending: list[StepResult] = []
        self._skips: list[SkippedStep] = []
        self._clock = time.perf_counter()
        self.data_wait_s = self._reported_wait_s = 0.0
        self._cadence = PeriodicTrigger(self.plan.logging_every, self.plan.steps_per_epoch)
        self._next_look = 0
        self._started = self._doing = self.ends_epoch = self.rolled_back = self.is_failing = False
        self._asked: list[Request] = []
        self._find_hooks()

    def add_callback(self, callback: Callback) -> None:
        """Add a callback."""
        self.callbacks.append(callback)
        self._find_hooks()

    def _find_hooks(self) -> None:
        self.hooks = {
            moment: hooks_of(self.callbacks, moment, self.plan.seed, self.plan.device)
            for moment in HOOKS
        }
        self._on_batch, self._on_step = self.hooks["on_batch"], self.hooks["on_step"]
        self.context.on_backward = [
            partial(self._call_backward, hook) for hook in self.hooks["on_backward"]
        ]

    @property
    def state(self) -> State:
        """Everything that changes."""
        return self.context.state

    def steps(self) -> Generator[StepResult, None, None]:
        """Train from the progress of the state to the end of the run, and yield after each step.

        If you leave the loop early, the state can be saved and resumed.

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
                if self.rolled_back:
                    self._count_from_here()
                asked = time.perf_counter()
                for batch in self.loader.batches(
                    self.state.progress.epoch, self.state.progress.position
                ):
                    self.data_wait_s += time.perf_counter() - asked
                    if state.spikes.skipped_steps:
                        batch = state.spikes.filter_batch(batch, state.progress.step + 1)
                    if self.deadline is not None:
                        self.check_time()
                    result = self.step(batch)
                    place, self.ends_epoch = state.progress, batch.ends_epoch
                    ends = self.ends_epoch or place.step >= end or self.stopping is not None
                    if (ends or place.step >= self._next_look) and self.maybe_log(force=ends):
                        collect(2 if ends else 1)
                        self.run_requests()
                    if self.rolled_back:
                        break
                    yield result
                    if self.rolled_back or state.progress is not place:
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
        self.rolled_back = False
        self._cadence.start(self.state.progress.items, self.world.seconds)
        self._next_look = self._cadence.next_check_step(self.state.progress.step)

    def step(self, batch: Batch) -> StepResult:
        """Take one step on a batch that is on the device, and call the callbacks."""
        if not self._started:
            self.start()
        for hook in self._on_batch:
            self.queue_request(hook(self.state, batch))
        meter = self.layer_norms
        if meter is not None and not self._may_log_after(batch):
            meter = None
        self.is_stepping = True
        try:
            if meter is not None:
                meter.begin()
            result = train_step(self.context, batch)
            if meter is not None:
                meter.end(result)
        except IndexError as error:
            where = f"step {self.state.progress.step + 1} of epoch {batch.epoch + 1}"
            explained = explain_target(error, batch.micro_batches, self._order_of(batch), where)
            if explained is None:
                raise
            raise explained from error
        except (RuntimeError, MemoryError) as error:
            if self.out_of_memory is not None and ran_out(error):
                raise self.out_of_memory(error) from error
            if (explained_error := self.world.explain_error(error)) is not error:
                raise explained_error from error
            raise
        except ValueError as error:
            if (explained := explain_single(error, batch.samples)) is not None:
                raise explained from error
            raise
        finally:
            self.is_stepping = False
        self._pending.append(result)
        if self.after_first and result.outcome.took_step:
            checks, self.after_first = self.after_first, []
            for check in checks:
                check()
        if self.world.agreed:
            self.apply_agreed_requests()
        if not result.outcome.took_step:
            self._skips.append(skipped_step(result, batch))
        if result.outcome.nonfinite:
            self._check_skip(result, batch)
        if self.rolled_back:
            return result
        for hook in self._on_step:
            self.queue_request(hook(self.state, result))
        if self._asked:
            self.run_requests()
        if self.stop is not None:
            stop, self.stop = self.stop, None
            stop()
        return result

    def _order_of(self, batch: Batch) -> Tensor | None:
        """Return the index of the sample at each position; empty for batches of `train_step()`."""
        if batch.end == batch.position or isinstance(self.loader.source, StreamLoader):
            return torch.empty(0)
        return self.loader.epoch_order(batch.epoch)

    def start(self) -> None:
        """Call `on_start` of the callbacks, once, before the first step of this process."""
        if not self._started:
            self._started = True
            for hook in self.hooks["on_start"]:
                self.queue_request(hook(self.state))
            for schedule in self.state.schedules.values():
                schedule.start(self.state.progress.steps_taken)
            self.run_requests()

    def queue_request(self, request: Request | None) -> None:
        """Note what a callback requests; it is done after the step."""
        if request is not None:
            self.request(request.value)

    def request(self, word: str) -> None:
        """Do what a word of `WORDS` says after this step; several ranks do it after the next."""
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

    def check_time(self) -> None:
        """Stop after this step if the deadline has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.deadline = None
            self.request("max_time")

    def stop_together(self, error: WorkerError) -> bool:
        """Request that all ranks stop because a data worker died; return whether to start new ones.

        The step at which the ranks agree needs a batch of each of them.
        """
        if self.world.size == 1 or self.worker_error is not None:
            return False
        self.worker_error = error
        self.request(WORKER_DIED)
        return True

    def check_workers(self) -> None:
        """Check that no rank stopped for a data worker that died.

        Raises:
            WorkerError: one did.
        """
        if self.interrupted == WORKER_DIED:
            raise self.worker_error or WorkerError("A data worker of another rank died.")

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
                    self.handlers[request]()
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
        (pending, self._pending), (own, self.manual_batches) = (
            (self._pending, []),
            (self.manual_batches, {}),
        )
        meter, n = self.layer_norms, len(pending)
        values = read_scalars(
            [
                *(r.loss_sum for r in pending),
                *(None if r.norms is None else r.norms.total for r in pending),
                *(() if meter is None else meter.values),
            ]
        )
        losses, norms = values[:n], values[n : 2 * n]
        layers = None if meter is None else meter.take(values[2 * n :])
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
        self._report(pending[:bad], means[:bad], norms[:bad], layers)
        if bad < len(pending) and not self.rolled_back:
            result = pending[bad]
            error = nonfinite_error(result, means[bad], self.plan)
            raise error if self.explain is None else self.explain(error, result, own)

    def _may_log_after(self, batch: Batch) -> bool:
        """Return whether a log point may be due after the step on this batch."""
        step = self.state.progress.step + 1
        return step >= self._next_look or batch.ends_epoch or step >= self.plan.total_steps

    def on_rollback(self) -> None:
        """Continue from the checkpoint that was just loaded."""
        self.rolled_back = True
        for schedule in self.state.schedules.values():
            schedule.show(self.state.progress.steps_taken)
        self._skips, self._asked = [], []
        self.context.strategy.reset_guard()
        if not self.interrupted:
            self.stopping = None  # it was requested by a step that is undone

    def maybe_log(self, *, force: bool = False) -> bool:
        """Take a log point if one is due; return whether it was."""
        place = self.state.progress
        due = self._cadence.is_due(place.step, place.items, self.world.seconds) or force
        if due:
            self.log_point()
            if self.check_replicas is not None:
                self.check_replicas()
        self._next_look = self._cadence.next_check_step(place.step)
        return due

    def _check_skip(self, result: StepResult, batch: Batch) -> None:
        """Fail now if the host knows that a step was not finite, and it must not be skipped."""
        counts = self.state.counts
        if self.plan.on_nonfinite == "skip" and counts.nonfinite <= self.plan.max_nonfinite_steps:
            if self.blame is not None:
                guilty = self.blame(result, batch)
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
        logged, seconds = read_logged(results, own_s, self.world, gone=self.is_failing)
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
        for report in self.on_log:
            report(point)
        for hook in self.hooks["on_log"]:
            self.queue_request(hook(self.state, point))

    def _call_backward(self, hook: Callable[[State], Request | None], state: State) -> None:
        self.queue_request(hook(state))
