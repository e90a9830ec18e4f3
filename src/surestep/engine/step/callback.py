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
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, cast

from surestep.base.errors import ConfigError, TaskError, suggest_names

if TYPE_CHECKING:
    from surestep.engine.batch import Batch
    from surestep.engine.state.state import State, Stateful
    from surestep.engine.step.log_point import LogPoint
    from surestep.engine.step.train_step import StepResult
    from surestep.engine.value import Value


class Request(Enum):
    """What a Callback may ask for by returning it; it is done after the step.

    What `on_start` asks for is done before the first step: a callback that always returns PAUSE
    there lets a run take no step, however often it is resumed.

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


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))

_AFTER_EPOCH = "on_evaluate(state, metrics), which is called after each evaluation, once an epoch"
_BEFORE_STEP, _AFTER_STEP = "on_batch(state, batch)", "on_step(state, result)"
_GRADIENTS = "on_backward(state), which sees the gradients before they are clipped"
# Hooks of Lightning, the Hugging Face Trainer and Keras, each with ours.
_ELSEWHERE = {
    **dict.fromkeys(
        ("on_fit_start", "on_train_start", "on_train_begin", "on_init_end"), "on_start(state)"
    ),
    **dict.fromkeys(("on_fit_end", "on_train_end"), "on_end(state)"),
    **dict.fromkeys(("on_epoch_end", "on_train_epoch_end"), _AFTER_EPOCH),
    **dict.fromkeys(
        ("on_epoch_begin", "on_epoch_start", "on_train_epoch_start"),
        f"{_BEFORE_STEP}, where state.progress.position is 0",
    ),
    **dict.fromkeys(
        ("on_batch_begin", "on_batch_start", "on_train_batch_begin", "on_train_batch_start"),
        _BEFORE_STEP,
    ),
    "on_step_begin": _BEFORE_STEP,
    **dict.fromkeys(("on_batch_end", "on_train_batch_end", "on_step_end"), _AFTER_STEP),
    **dict.fromkeys(("on_optimizer_step", "on_before_zero_grad"), _AFTER_STEP),
    **dict.fromkeys(
        (
            *("on_after_backward", "on_before_backward", "on_before_optimizer_step"),
            "on_pre_optimizer_step",
        ),
        _GRADIENTS,
    ),
    **dict.fromkeys(
        (
            *("on_validation_start", "on_validation_end", "on_validation_epoch_end"),
            *("on_test_begin", "on_test_end", "on_test_epoch_end", "on_validation_batch_end"),
        ),
        "on_evaluate(state, metrics), which is called after each evaluation",
    ),
    **dict.fromkeys(
        ("on_save_checkpoint", "on_load_checkpoint"),
        "state_dict() and load_state_dict(state), which are saved with each checkpoint",
    ),
}


def check_hooks(callback: Callback) -> None:
    """Check that each hook of a callback is one that is called, with what it takes.

    Raises:
        ConfigError: a method called on_... is not a hook, or takes other arguments.
    """
    kind = type(callback)
    for name in (name for name in dir(kind) if name.startswith("on_")):
        if name not in HOOKS:
            meant = f"Use {_ELSEWHERE[name]}." if name in _ELSEWHERE else suggest_names(name, HOOKS)
            raise ConfigError(f"{kind.__name__}.{name} is never called: it is not a hook. {meant}")
        takes = list(signature(getattr(Callback, name)).parameters)[1:]
        try:
            signature(getattr(callback, name)).bind(*takes)
        except TypeError:
            written = f"def {name}(self, {', '.join(takes)})"
            raise ConfigError(
                f"{kind.__name__}.{name} is called with ({', '.join(takes)}), and cannot take "
                f"them. Write {written}."
            ) from None


def callbacks_with(callbacks: list[Callback], moment: str) -> list[Callback]:
    """List the callbacks that watch `moment`, so that the others cost nothing."""
    plain = getattr(Callback, moment)
    return [each for each in callbacks if getattr(type(each), moment) is not plain]


def stateful_callbacks(callbacks: "Iterable[Callback]") -> "dict[str, Stateful]":
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
