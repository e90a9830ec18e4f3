"""Callbacks: they observe a run and may return requests; they never change it.

The hooks in the order in which a run calls them:

    on_start(state)
    for batch in data:
        on_batch(state, batch)        before the forward
        ... forward, backward ...
        on_backward(state)            gradients are in .grad, unscaled, not yet clipped
        ... clip, optimizer step ...
        on_step(state, result)        reading a tensor of `result` waits for the device
    on_log(state, point)              at a log point: numbers that the host has already read
    on_evaluate(state, metrics)       after each evaluation
    on_save(state, checkpoint)        when a checkpoint is on the disk and verified
    on_exception(state, error)        when an error ends the run
    on_end(state)

A callback can save state: what its `state_dict()` returns is saved in each checkpoint, and passed
to its `load_state_dict(state)` before `on_start` of a resumed run. It may consist of numbers, text,
tensors, and lists and dicts of these.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, cast

from surestep.base.errors import ConfigError, TaskError, suggest_names
from surestep.engine.value import Metrics

if TYPE_CHECKING:
    from surestep.engine.batch import Batch
    from surestep.engine.state.state import State, Stateful
    from surestep.engine.step.log_point import LogPoint
    from surestep.engine.step.train_step import StepResult


class Request(Enum):
    """What a Callback can request by returning it from a hook.

    The run does it after the step. A request of `on_start` is done before the first step, so a
    callback that always returns PAUSE there keeps a run from taking any step.

    Attributes:
        STOP: end the run. It is finished, and the same call does not train further.
        PAUSE: save and stop; the same call resumes the run, as after SIGTERM (exit code 75).
        SAVE: write a checkpoint.
        EVALUATE: evaluate on the validation data.
    """

    STOP = "stop"
    PAUSE = "pause"
    SAVE = "save"
    EVALUATE = "evaluate"


@dataclass(frozen=True)
class Stop:
    """What a part of surestep returns to end the run after this step, on all ranks.

    Attributes:
        reason: why the run is finished.
    """

    reason: str


@dataclass(frozen=True)
class Rollback:
    """What a part of surestep returns to continue the run from an earlier checkpoint, at once.

    Attributes:
        load: loads the checkpoint on each rank.
    """

    load: Callable[[], object]


Reply = Request | Stop | Rollback | str | None  # what a hook wants; a text is for the user


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that was just written and verified.

    Attributes:
        path: its folder.
        step: the step that it holds; training may be further by now.
        metrics: metrics of an evaluation at this step, by "set/metric"; empty if there was none.
    """

    path: Path
    step: int
    metrics: Metrics = field(default_factory=Metrics)


class Callback:
    """Base class of callbacks, with nine hooks; override those that you need.

    Hooks observe the run and must not change it. A hook that returns a `Request` makes the run
    stop, pause, save or evaluate. A line of text is printed, and written to the events as a notice.

    Example:
        >>> import torch
        >>> import surestep
        >>> class StopAtStep(surestep.Callback):
        ...     def on_step(self, state, result):
        ...         return surestep.Request.STOP if state.progress.step == 2 else None
        >>> x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
        >>> task = surestep.Task(torch.nn.Linear(4, 3), loss="multiclass", train=(x, y))
        >>> config = surestep.Config(epochs=1, batch_size=16, logging={"progress": "quiet"})
        >>> run = surestep.Trainer(task, config, run="runs/stop", callbacks=[StopAtStep()]).fit()
        >>> run.last.step
        2
    """

    def on_start(self, state: "State") -> Reply:
        """Called before the first step of this process.

        Args:
            state: the initial state, or that of the checkpoint from which the run resumes.

        Returns:
            A request, a line to print, or None.
        """

    def on_batch(self, state: "State", batch: "Batch") -> Reply:
        """Called with each global batch, before its forward pass.

        Args:
            state: the state before the step.
            batch: the batch on the device, before `batch_transform`; with several ranks, what this
                rank has read of it.

        Returns:
            A request, a line to print, or None.
        """

    def on_backward(self, state: "State") -> Reply:
        """Called after the backward pass; gradients are unscaled and not yet clipped.

        A manual step calls it once for each loop over its micro-batches, before the first clipping.

        Args:
            state: the state before the step; `.grad` of its parameters is that of all ranks, and
                sharded if they are. Reading a gradient waits for the device.

        Returns:
            A request, a line to print, or None.
        """

    def on_step(self, state: "State", result: "StepResult") -> Reply:
        """Called after each step.

        Args:
            state: the state after the step.
            result: what the step did; reading one of its tensors waits for the device.

        Returns:
            A request, a line to print, or None.
        """

    def on_evaluate(self, state: "State", metrics: Metrics) -> Reply:
        """Called after an evaluation of all validation sets, once per step.

        Args:
            state: the state; its model has the training weights, not their average.
            metrics: numbers on the host, by "set/metric", and in `.tables` confusion matrices and
                the like.

        Returns:
            A request, a line to print, or None.
        """

    def on_log(self, state: "State", point: "LogPoint") -> Reply:
        """Called at each log point: every `logging.every`, and before evaluations and checkpoints.

        Args:
            state: the state after the last of these steps.
            point: values of the steps since the last log point; reading them never waits for the
                device.

        Returns:
            A request, a line to print, or None.
        """

    def on_save(self, state: "State", checkpoint: SavedCheckpoint) -> Reply:
        """Called when a checkpoint is on disk and verified.

        Args:
            state: the current state; with `checkpoint.async_save` it may be some steps further.
            checkpoint: its folder, step and metrics.

        Returns:
            A request, a line to print, or None.
        """

    def on_exception(self, state: "State", error: BaseException) -> None:
        """Called with the error that ends the run, before `on_end`.

        It is not called if a signal, `max_time` or `Request.PAUSE` stops the run.

        Args:
            state: the current state; for a NonFiniteError the one before that step.
            error: the error; it is raised afterwards.
        """

    def on_end(self, state: "State") -> None:
        """Called when the session closes; requests are no longer possible.

        Args:
            state: the state after the last step.
        """


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check_hooks(callback: Callback) -> None:
    """Check the names and parameters of a callback's hooks.

    Raises:
        ConfigError: a method on_... is not a hook, or takes different arguments.
    """
    kind = type(callback)
    for name in (name for name in dir(kind) if name.startswith("on_")):
        if name not in HOOKS:
            advice = suggest_names(name, HOOKS)
            raise ConfigError(f"{kind.__name__}.{name} is never called: it is not a hook. {advice}")
        takes = list(signature(getattr(Callback, name)).parameters)[1:]
        try:
            signature(getattr(callback, name)).bind(*takes)
        except TypeError:
            written = f"def {name}(self, {', '.join(takes)})"
            raise ConfigError(
                f"{kind.__name__}.{name} is called with ({', '.join(takes)}), and cannot take "
                f"them. Write {written}."
            ) from None


def stateful_callbacks(callbacks: "Iterable[Callback]") -> "dict[str, Stateful]":
    """Return the callbacks that save state, by their `name` or the name of their class.

    Raises:
        TaskError: two have the same name, or one can only save or only load.
    """
    found: dict[str, Stateful] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        has = [hasattr(callback, method) for method in ("state_dict", "load_state_dict")]
        if not any(has):
            continue
        if not all(has):
            lacks = "load_state_dict(state)" if has[0] else "state_dict()"
            raise TaskError(f"The callback {kind} has no {lacks}. Give it both, or neither.")
        name = str(getattr(callback, "name", kind))
        if name in found:
            raise TaskError(
                f"Two callbacks with a state are called {name!r}, and a checkpoint keeps it by "
                f"name. Give each its own: {kind}.name = 'first'."
            )
        found[name] = cast("Stateful", callback)
    return found
