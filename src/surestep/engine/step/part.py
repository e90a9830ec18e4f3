"""Parts: what acts in a run beside the step, called at its moments in one order.

A user's Callback is a part that observes. A Part of surestep has more moments, and may change the
run. A moment that no part has costs nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.base.text import describe_value
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import SeparateRNG, derive_seed
from surestep.engine.step.callback import HOOKS, Callback, Reply, Request

if TYPE_CHECKING:
    from surestep.engine.batch import Batch
    from surestep.engine.state.state import State
    from surestep.engine.step.log_point import LayerNorms
    from surestep.engine.step.train_step import StepContext, StepResult


_SURESTEP = __name__.partition(".")[0]


class Part(Callback):
    """A part of surestep itself.

    Its moments beside the hooks of a Callback, which come in this order:

        on_first_step(state)             once, after the first step that updated the parameters
        on_skip(state, result, batch)    a step was not finite, and is skipped
        on_step(state, result)
        to_read(), on_read(values)       what a log point reads from the device with its own values
        on_log(state, point)
        on_due(state)                    a log point was due; all ranks are here together
        on_request(state, request)       a part requested this, at most once after each step
        on_between(state, result)        in `fit()`, after all of this step and before the next one
        on_eval_batch(state)             before each batch of an evaluation
        on_error(state, error, place)    an error of a step or an evaluation is about to be raised
        on_rollback(state)               an earlier checkpoint was loaded
        on_last(state)                   `fit()` took the last step; the run was not interrupted
    """

    def on_first_step(self, state: "State") -> None:
        """Called once, after the first step of this process that updated the parameters."""

    def on_skip(
        self, state: "State", result: "StepResult", batch: "Batch"
    ) -> tuple[int, ...] | None:
        """Called after a step that is skipped, since it was not finite.

        Returns:
            The positions of the samples that caused it, if known.
        """

    def to_read(self) -> Sequence[Tensor]:
        """Return scalars on the device that the next log point reads; they may be none."""
        return ()

    def on_read(self, values: Sequence[float | None]) -> "LayerNorms | None":
        """Called with the values of what `to_read` returned.

        Returns:
            What the log point then has as its `layers`.
        """

    def on_due(self, state: "State") -> None:
        """Called after a log point that was due, on all ranks after the same step."""

    def on_request(self, state: "State", request: Request) -> None:
        """Called if a part requested a save or an evaluation, after the step."""

    def on_between(self, state: "State", result: "StepResult") -> None:
        """Called by `fit()` after a step, its log point and what it requested.

        If it rolls back the run, the parts after it are not called.
        """

    def on_last(self, state: "State") -> None:
        """Called by `fit()` after the last step, also if it is the last since a part stopped."""

    def on_eval_batch(self, state: "State") -> None:
        """Called before each batch of an evaluation."""

    def on_error(
        self, state: "State", error: Exception, place: "StepResult | int | None"
    ) -> Exception | None:
        """Called with an error of a step or of an evaluation, before it is raised.

        Args:
            state: the current state; for a NonFiniteError the one before that step.
            error: the error.
            place: what the step did, if it ended; the batch size, if it is of an evaluation.

        Returns:
            The error to raise instead; None if this part does not know better.
        """

    def on_rollback(self, state: "State") -> None:
        """Called when an earlier checkpoint was loaded, from which the run continues."""


class Functions(Part):
    """A part that is made of functions, by their moments: `Functions("checks", on_log=check)`.

    Attributes:
        label: the name of the part, for people.
    """

    def __init__(self, label: str, **functions: Callable[..., Any]) -> None:
        self.label = label
        for moment, function in functions.items():
            setattr(self, moment, function)


_MOMENTS = (*HOOKS, *(name for name in vars(Part) if name.startswith(("on_", "to_"))))


class Parts:
    """The parts of a run, called at their moments in order; none before `attach()`.

    Args:
        context: of a step.
        plan: the resolved options.
        react: does what a hook returned, if it is not None.
    """

    def __init__(
        self, context: "StepContext", plan: Plan, react: Callable[[Reply], object]
    ) -> None:
        self._context, self._plan, self._react = context, plan, react
        self.attach(())

    def attach(self, parts: Sequence[Callback]) -> None:
        """Call these parts from now on; hooks of users draw numbers that change no training."""
        self._parts = parts
        plan = self._plan
        self._use({name: _hooks_of(parts, name, plan.seed, plan.device) for name in _MOMENTS})

    def _use(self, moments: dict[str, list[Callable[..., Any]]]) -> None:
        self._moments = moments
        self.on_batch, self.on_step = moments["on_batch"], moments["on_step"]  # for each step
        self._context.on_backward = [
            partial(self.call_backward, hook) for hook in moments["on_backward"]
        ]

    def call_backward(self, hook: Callable[..., Reply], state: "State") -> None:
        """Call a hook after the backward pass; do what it returns."""
        if (reply := hook(state)) is not None:
            self._react(reply)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._parts)

    def hooks(self, moment: str) -> list[Callable[..., Any]]:
        """Return what to call at a moment, in order."""
        return self._moments[moment]

    def call(self, moment: str, *args: Any) -> None:
        """Call the parts that have a moment; do what they return."""
        for hook in self._moments[moment]:
            if (reply := hook(self._context.state, *args)) is not None:
                self._react(reply)

    def explain(
        self, error: Exception, place: "StepResult | int | None" = None
    ) -> Exception | None:
        """Return the error to raise instead of one, by the first part that knows better.

        Args:
            error: of a step or an evaluation.
            place: what the step did, if it ended; the batch size of the evaluation.
        """
        state = self._context.state
        found = (hook(state, error, place) for hook in self._moments["on_error"])
        return next(filter(None, found), None)

    @contextmanager
    def explain_errors(self, place: int | None = None) -> Iterator[None]:
        """Raise for an error of torch or of memory in a block what a part knows better.

        Args:
            place: the batch size of the evaluation.
        """
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if (explained := self.explain(error, place)) is None:
                raise
            raise explained from error

    def time(self) -> tuple[dict[str, float], Callable[[], None]]:
        """Measure how long each part takes from now on, without the parts that it calls.

        Returns:
            The seconds by part, which are updated, and a function that ends the measurement.
        """
        seconds: dict[str, float] = {}
        before, called_s = self._moments, 0.0  # of the parts that the current one called

        def timed(part: Callback, hook: Callable[..., Any]) -> Callable[..., Any]:
            label = part.label if isinstance(part, Functions) else type(part).__name__

            def call(*args: Any) -> Any:
                nonlocal called_s
                started, outer_s, called_s = time.perf_counter(), called_s, 0.0
                try:
                    return hook(*args)
                finally:
                    took_s = time.perf_counter() - started
                    seconds[label] = seconds.get(label, 0.0) + took_s - called_s
                    called_s = outer_s + took_s

            return call

        self._use(
            {
                moment: list(map(timed, parts_with(self._parts, moment), hooks))
                for moment, hooks in before.items()
            }
        )
        return seconds, partial(self._use, before)


def _hooks_of(
    parts: Sequence[Callback], moment: str, seed: int, device: torch.device
) -> list[Callable[..., Any]]:
    hooks: list[Callable[..., Any]] = []
    numbers: Counter[str] = Counter()
    for part in parts_with(parts, moment):
        kind, hook = type(part), getattr(part, moment)
        if kind.__module__.partition(".")[0] == _SURESTEP:
            hooks.append(hook)
            continue
        name = f"{kind.__module__}.{kind.__qualname__}"  # so that no other callback changes it
        call = SeparateRNG(derive_seed("callback", seed, moment, name, numbers[name]), device).call
        hooks.append(partial(_call_hook, call, hook, f"{kind.__name__}.{moment}"))
        numbers[name] += 1
    return hooks


def _call_hook(call: Any, hook: Any, name: str, state: "State", *args: Any) -> Reply:
    reply = call(state.progress.step, hook, state, *args)
    if name.endswith(".on_end"):
        return None
    if reply is None or isinstance(reply, Request | str):
        return reply
    raise TaskError(
        f"{name} returned {describe_value(reply)}. Return None, a surestep.Request such as "
        "Request.STOP, or a line of text to print."
    )


def parts_with(parts: Sequence[Callback], moment: str) -> list[Callback]:
    """Return the parts that override a moment."""
    base: type = Callback if moment in HOOKS else Part
    plain = getattr(base, moment)
    return [
        part
        for part in parts
        if isinstance(part, base)
        and (moment in getattr(part, "__dict__", ()) or getattr(type(part), moment) is not plain)
    ]
