"""The arguments of `prepare()`: their types, and from where it may be called."""

import os
from collections.abc import Sequence
from multiprocessing import current_process
from typing import Any

from torch import nn

from surestep.base.errors import ConfigError, TaskError
from surestep.base.paths import reject_pattern
from surestep.base.text import describe_value
from surestep.config.config import Config, option_info, plugin_options
from surestep.config.option import is_off
from surestep.engine.plan.plan import Plan
from surestep.engine.step.callback import Callback, check_hooks
from surestep.engine.task.task import Task
from surestep.trainer.trackers import check_trackers


def check_main_guard() -> None:
    """Check that this is not a process of multiprocessing that imports the script."""
    if getattr(current_process(), "_inheriting", False):
        raise ConfigError(
            "A new process of multiprocessing, such as a data worker that is spawned, imports the "
            "script, which starts the run again there. Put the lines that train under "
            "if __name__ == '__main__':."
        )


def check_arguments(task: Any, config: Any, run: Any, callbacks: Any, trackers: Any) -> None:
    """Check the types of the arguments, each hook of a callback, and that training may start."""
    check_trackers(trackers)
    if not isinstance(task, Task):
        hint = "Pass surestep.Task(model=net, loss=..., train=(x, y))."
        if callable(task) and not isinstance(task, nn.Module | type):
            hint = "Call it, and pass the Task that it returns."
        raise TaskError(f"task is {describe_value(task)}, not a Task. {hint}")
    check_config(config)
    if run is not None and not isinstance(run, str | os.PathLike):
        raise ConfigError(f"run={run!r} is not a path. Pass the run folder: run='runs/mine'.")
    if run is not None:
        reject_pattern(run)
    check_callbacks(callbacks)
    check_main_guard()


def check_config(config: Any) -> None:
    """Check the type of a config."""
    if not isinstance(config, Config):
        raise ConfigError(
            f"config is {describe_value(config)}. Pass surestep.Config(epochs=10, ...)."
        )


def check_callbacks(callbacks: Any) -> None:
    """Check the types of callbacks, and each of their hooks."""
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ConfigError(
            f"callbacks is {describe_value(callbacks)}, not a list. Pass objects: "
            "callbacks=[MyCallback()]."
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks has {describe_value(callback)}, not an object of a surestep.Callback. "
                "Derive your class from it, and pass an object: callbacks=[MyCallback()]."
            )
        check_hooks(callback)


def plugin_callbacks(plan: Plan) -> list[Callback]:
    """Return the callbacks of the options that packages add, and that are not off."""
    found = []
    for name in plugin_options():
        info, value = option_info(name), getattr(plan, name)
        if info is None or info.callback is None or is_off(value):
            continue
        found.append(callback := info.callback(value))
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"The callback of the option {name!r} returned {describe_value(callback)}, not an "
                "object of a surestep.Callback. Change it in the package that adds the option."
            )
        check_hooks(callback)
    return found
