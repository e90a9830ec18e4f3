"""The steps of a run, with its parts between them."""

import math
import time
from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.failures import explain_target
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.device import release_memory
from surestep.engine.model.forward_errors import explain_single
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback, Reply, Request, Rollback, Stop
from surestep.engine.step.cuda_graphs import record_on_gpu
from surestep.engine.step.fitted_steps import FittedSteps, StepAgain
from surestep.engine.step.gc import manual_gc
from surestep.engine.step.graphed_steps import GraphedSteps
from surestep.engine.step.part import Parts
from surestep.engine.step.requests import Requests
from surestep.engine.step.step_log import StepLog
from surestep.engine.step.train_step import StepContext, StepResult, train_step


class Loop:
    """Steps over a batch loader, and calls the parts of the run at their moments.

    Attributes:
        context: of a step.
        loader: of the training data.
        plan: the resolved options.
        world: the ranks.
        parts: what acts beside the step.
        requests: to stop, pause, save or evaluate.
        log: the steps since the last log point.
        ends_epoch: the last step of `steps()` was the last of its epoch.
        take_step: updates the parameters by a batch.
        fitted: chooses the micro-batch sizes; None if they are fixed.
    """

    def __init__(self, context: StepContext, loader: BatchLoader, plan: Plan) -> None:
        self.context, self.loader, self.plan = context, loader, plan
        self.world = context.strategy.world
        self.parts = Parts(context, plan, self.react)
        self.requests = Requests(self.world)
        self.log = StepLog(context, plan, self.parts)
        self.ends_epoch = False
        self._started = self._doing = self._is_stepping = False
        self._after_step: Callable[[], object] | None = None
        self.take_step: Callable[[StepContext, Batch], StepResult] = train_step
        if plan.cuda_graph:
            self.take_step = GraphedSteps(plan.batch_size, record_on_gpu).take
        self.fitted: FittedSteps | None = None
        self.attach((), notify=lambda text: None)

    def attach(self, parts: Sequence[Callback], notify: Callable[[str], None]) -> None:
        """Call these parts from now on.

        Args:
            parts: of the run, in order.
            notify: shows the user a notice of a part.
        """
        self.parts.attach(parts)
        self._notify = notify
        self._on_first_step = self.parts.hooks("on_first_step")

    def fit_memory(self, fitted: FittedSteps) -> None:
        """Take the steps in micro-batches that fit in memory."""
        self.fitted, self.take_step = fitted, fitted.take

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
        end, state, log = self.plan.total_steps, self.state, self.log
        requests, is_again = self.requests, False
        self.start()
        with manual_gc() as collect, self.parts.explain_errors():
            log.start_clock()
            log.count_from_here()
            while self.state.progress.step < end and requests.stopping is None:
                asked = time.perf_counter()
                same_size_until = self._use_size(is_again=is_again)
                for batch in self.loader.batches(
                    self.state.progress.epoch, self.state.progress.position
                ):
                    log.data_wait_s += time.perf_counter() - asked
                    if state.spikes.skipped_steps:
                        batch = state.spikes.filter_batch(batch, state.progress.step + 1)
                    try:
                        result = self.step(batch) if not is_again else self._step_again(batch)
                    except StepAgain:
                        is_again = True
                        del batch  # its memory is needed
                        break
                    is_again = False
                    place, self.ends_epoch = state.progress, batch.ends_epoch
                    ends = self.ends_epoch or place.step >= end or requests.stopping is not None
                    if (ends or place.step >= log.next_look) and log.take_if_due(force=ends):
                        collect(2 if ends else 1)
                        self.run_requests()
                    if is_fit:
                        self._call_between(result)
                    if state.progress.step != result.step:
                        break  # the run was rolled back
                    yield result
                    if state.progress is not place:
                        break  # other progress was loaded while the caller had control
                    if place.step >= end or requests.stopping is not None:
                        requests.check_workers()
                        return
                    if place.step >= same_size_until:
                        break
                    asked = time.perf_counter()
                else:
                    place = self.state.progress
                    if place.position:  # this epoch has no more batches
                        self.state.progress = place._replace(epoch=place.epoch + 1, position=0)

    def _use_size(self, *, is_again: bool) -> float:
        """Set the micro-batch size of the next step; return the last step with this size."""
        if self.fitted is None:
            return math.inf
        if is_again:
            release_memory(self.loader.device)
        return self.fitted.use_size(self.state.progress.step + 1)

    def _step_again(self, batch: Batch) -> StepResult:
        """Take a step whose callbacks have seen the batch already."""
        hooks, self.parts.on_batch = self.parts.on_batch, []
        try:
            return self.step(batch)
        finally:
            self.parts.on_batch = hooks

    def _call_between(self, result: StepResult) -> None:
        for hook in self.parts.hooks("on_between"):
            if self.state.progress.step == result.step:  # the run was not rolled back
                hook(self.state, result)

    def step(self, batch: Batch) -> StepResult:
        """Take one step on a batch that is on the device, and call the callbacks."""
        if not self._started:
            self.start()
        state = self.context.state
        for hook in self.parts.on_batch:
            if (reply := hook(state, batch)) is not None:
                self.react(reply)
        self._is_stepping = True
        try:
            result = self.take_step(self.context, batch)
        except (IndexError, RuntimeError, MemoryError, ValueError) as error:
            explained = self._explain(error, batch)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._is_stepping = False
        self.log.pending.append(result)
        outcome = result.outcome
        if self._on_first_step and outcome.took_step:
            first, self._on_first_step = self._on_first_step, []
            for hook in first:
                hook(state)
        if self.world.agreed:
            self.requests.apply_agreed()
        place = state.progress
        if not outcome.took_step:
            self.log.note_skip(result, batch)
        if outcome.nonfinite:
            self._check_skip(result, batch)
        if state.progress is not place:  # the run was rolled back
            return result
        for hook in self.parts.on_step:
            if (reply := hook(state, result)) is not None:
                self.react(reply)
        if self.requests.asked:
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
            explained = self.parts.explain(error) or self.world.explain_error(error)
            if explained is not error and self.fitted is not None and self.fitted.advice:
                explained.args = (f"{explained}\n{self.fitted.advice}",)
        return error if explained is None else explained

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
            self.parts.call("on_start")
            for schedule in self.state.schedules.values():
                schedule.start(self.state.progress.steps_taken)
            if self.world.size > 1:  # as one process, which does not wait for a step either
                self.world.exchange(())
                self.requests.apply_agreed()
            self.run_requests()
            self.run_requests()  # what an evaluation before the first step requested

    def react(self, reply: Reply) -> None:
        """Do what a part returned: show a notice or load a checkpoint now, the rest after the step.

        Args:
            reply: what the part returned.
        """
        match reply:
            case Request():
                self.requests.ask(reply.value)
            case Stop():  # on every rank
                self.requests.stopping = reply.reason
            case Rollback():
                reply.load()
                self._continue_from_checkpoint()
            case str():
                self._notify(reply)

    def run_requests(self) -> None:
        """Do what parts requested, once each; requests made meanwhile wait for a step."""
        if self.requests.asked and not self._doing:
            self.log.take()  # a bad step that is not read yet undoes requests
            self._doing = True
            try:
                for request in self.requests.take():
                    self.parts.call("on_request", request)
            finally:
                self._doing = False

    def _continue_from_checkpoint(self) -> None:
        self.log.count_from_here()
        for schedule in self.state.schedules.values():
            schedule.show(self.state.progress.steps_taken)
        self.requests.undo()
        self.context.strategy.reset_guard()
        self.parts.call("on_rollback")

    def _check_skip(self, result: StepResult, batch: Batch) -> None:
        """Fail now if the host knows that a step was not finite, and it must not be skipped."""
        counts = self.state.counts
        if self.plan.on_nonfinite == "skip" and counts.nonfinite <= self.plan.max_nonfinite_steps:
            for hook in self.parts.hooks("on_skip"):
                self.log.blame(hook(self.state, result, batch))
            return
        counts.nonfinite -= 1
        result.is_fatal = True
        self.log.take()
