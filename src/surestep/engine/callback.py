"""Watchers. They look, they never touch; they may ask.

A step with every moment in its place:

    on_start(state)
    for batch in data:
        on_batch(state, batch)        before the forward
        ... forward, backward ...
        on_backward(state)            gradients stand in .grad, unscaled, not yet clipped
        ... clip, optimizer step ...
        on_step(state, result)        reading a tensor of `result` waits for the device
    on_evaluate(state, metrics)       after each evaluation
    on_end(state)
"""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surestep.engine.data.batch import Batch
    from surestep.engine.metrics import Value
    from surestep.engine.state import State
    from surestep.engine.step import StepResult


class Request(Enum):
    """What a Callback may ask for by returning it; it is done after the step."""

    STOP = "stop"
    SAVE = "save"
    EVALUATE = "evaluate"


class Callback:
    """A watcher with six moments; override those you need."""

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

    def on_end(self, state: "State") -> None:
        """Look at the state when the session closes; there is no step left to ask for."""


def overriding(callbacks: list[Callback], moment: str) -> list[Callback]:
    """List the callbacks that watch `moment`, so that the others cost nothing."""
    plain = getattr(Callback, moment)
    return [each for each in callbacks if getattr(type(each), moment) is not plain]
