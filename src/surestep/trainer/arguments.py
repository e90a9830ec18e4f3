"""The arguments of `Trainer` and `prepare`, checked before anything is built."""

import os
from collections.abc import Sequence
from typing import Any

from torch import nn

from surestep.base.errors import ConfigError, TaskError
from surestep.config.config import Config
from surestep.engine.step.callback import Callback, check_hooks
from surestep.engine.task.task import Task


def check_arguments(task: Any, config: Any, run: Any, callbacks: Any) -> None:
    """Check that each argument is of its kind.

    Raises:
        TaskError: `task` is not a Task.
        ConfigError: another one is not what it must be.
    """
    if not isinstance(task, Task):
        raise TaskError(f"task is {_shown(task)}. {_task_instead(task)}")
    if not isinstance(config, Config):
        raise ConfigError(
            f"config is a {type(config).__name__}. Give surestep.Config(epochs=10, ...)."
        )
    if run is not None and not isinstance(run, str | os.PathLike):
        raise ConfigError(f"run={run!r} is not a path. Pass the run folder: run='runs/mine'.")
    check_callbacks(callbacks)


def check_callbacks(callbacks: Any) -> None:
    """Check that `callbacks` is a list of callbacks whose hooks exist.

    Raises:
        ConfigError: it is not, and what to write instead.
    """
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ConfigError(f"callbacks is {_shown(callbacks)}, not a list. {_list_of(callbacks)}")
    for each in callbacks:
        name = each.__name__ if isinstance(each, type) else type(each).__name__
        if isinstance(each, type) and issubclass(each, Callback):
            raise ConfigError(f"callbacks has the class {name}. Pass an object: {name}().")
        if not isinstance(each, Callback):
            raise ConfigError(
                f"callbacks has {_shown(each)}, which is not a surestep.Callback. {_derived(each)}"
            )
        check_hooks(each)


def _task_instead(value: Any) -> str:
    if isinstance(value, nn.Module) or (isinstance(value, type) and issubclass(value, nn.Module)):
        return "A model goes into a Task: surestep.Task(model=net, loss=..., train=(x, y))."
    if callable(value):
        return "Call it, and pass the Task that it returns."
    return "Pass surestep.Task(model=net, loss=..., train=(x, y))."


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return f"a {type(value).__name__}"


def _list_of(value: Any) -> str:
    """Say which list to write instead of a value."""
    if isinstance(value, Callback):
        return "Write callbacks=[that one]."
    if isinstance(value, type) and issubclass(value, Callback):
        return f"Write callbacks=[{value.__name__}()]."
    if not value:
        return "Leave it out, or write callbacks=[]."
    return f"It takes objects: callbacks=[MyCallback()]. {_derived(value)}"


def _derived(value: Any) -> str:
    """Say how a callback is made of what was given."""
    if type(value).__module__ == "builtins" and not isinstance(value, type):
        return "Derive a class from it: class MyCallback(surestep.Callback)."
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"Derive its class from it: class {name}(surestep.Callback)."
