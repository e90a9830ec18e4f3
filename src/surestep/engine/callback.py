"""Watchers. They look, they never touch; they may ask.

A step with every moment in its place:

    on_start(state)
    for batch in data:
        on_batch(state, batch)        before the forward
        ... forward, backward ...
        on_backward(state)            gradients stand in .grad, unscaled, not yet clipped
        ... clip, optimizer step ...
        on_step(state, result)        reading a tensor of `result` waits for the device
    on_log(state, point)              at a log point: numbers that the host has already read
    on_evaluate(state, metrics)       after each evaluation
    on_save(state, checkpoint)        when a checkpoint is on the disk and verified
    on_exception(state, error)        when an error ends the run
    on_end(state)

A callback with a memory may say so: with `state_dict()` and `load_state_dict(state)` what the first
returns is saved with each checkpoint, and given to the second before `on_start` of a run that goes
on. It is numbers, text, tensors, or lists and dicts of those.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, cast

from surestep.base.errors import TaskError

if TYPE_CHECKING:
    from surestep.engine.data.batch import Batch
    from surestep.engine.log_point import LogPoint
    from surestep.engine.state import State, Stateful
    from surestep.engine.step import StepResult
    from surestep.engine.value import Value


class Request(Enum):
    """What a Callback may ask for by returning it; it is done after the step.

    Attributes:
        STOP: end the run; it is finished, and the same call does not train any more.
        PAUSE: save and leave; the same call resumes the run, as after SIGTERM (exit code 75).
        SAVE: write a checkpoint.
        EVALUATE: evaluate on the validation data.
    """

    STOP = "stop"
    PAUSE = "pause"
    SAVE = "save"
    EVALUATE = "evaluate"


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that was just written and verified.

    Attributes:
        path: its folder.
        step: the step whose state it holds; training may be further by now.
        metrics: of an evaluation at that very step, by "set/metric"; empty if there was none.
    """

    path: Path
    step: int
    metrics: "Mapping[str, Value]" = field(default_factory=dict)


class Callback:
    """A watcher with nine hooks; override those you need."""

    def on_start(self, state: "State") -> Request | None:
        """Look at the state before the first step of this process."""
        return None

    def on_batch(self, state: "State", batch: "Batch") -> Request | None:
        """Look at a global batch before its forward."""
        return None

    def on_backward(self, state: "State") -> Request | None:
        """Look at the gradients, unscaled and not yet clipped."""
        return None

    def on_step(self, state: "State", result: "StepResult") -> Request | None:
        """Look at a step that was done; reading the result's tensors waits for the device."""
        return None

    def on_evaluate(self, state: "State", metrics: "Mapping[str, Value]") -> Request | None:
        """Look at the metrics of an evaluation, by "set/metric"."""
        return None

    def on_log(self, state: "State", point: "LogPoint") -> Request | None:
        """Read the steps since the last log point; reading `point` never waits for the device.

        Called every `logging.every` steps, and before each evaluation and checkpoint.
        """
        return None

    def on_save(self, state: "State", checkpoint: SavedCheckpoint) -> Request | None:
        """Look at a checkpoint that is on the disk and verified.

        With `checkpoint.async_save` training is some steps further by then.
        """
        return None

    def on_exception(self, state: "State", error: BaseException) -> None:
        """Look at the error that ends the run, before `on_end`.

        A run that a signal, `max_time` or `Request.PAUSE` stops does not end by an error.
        """

    def on_end(self, state: "State") -> None:
        """Look at the state when the session closes; there is no step left to ask for."""


def overriding(callbacks: list[Callback], moment: str) -> list[Callback]:
    """List the callbacks that watch `moment`, so that the others cost nothing."""
    plain = getattr(Callback, moment)
    return [each for each in callbacks if getattr(type(each), moment) is not plain]


def declared(callbacks: "Iterable[Callback]") -> "dict[str, Stateful]":
    """Return the callbacks that have a state, by their `name`, or their class's.

    Raises:
        TaskError: two have the same name, or one can only save or only load.
    """
    found: dict[str, Stateful] = {}
    for each in callbacks:
        kind = type(each).__name__
        has = [hasattr(each, method) for method in ("state_dict", "load_state_dict")]
        if not any(has):
            continue
        if not all(has):
            lacks = "load_state_dict(state)" if has[0] else "state_dict()"
            raise TaskError(f"The callback {kind} has no {lacks}. Give it both, or neither.")
        name = str(getattr(each, "name", kind))
        if name in found:
            raise TaskError(
                f"Two callbacks with a state are called {name!r}, and a checkpoint keeps it by "
                f"name. Give each its own: {kind}.name = 'first'."
            )
        found[name] = cast("Stateful", each)
    return found
