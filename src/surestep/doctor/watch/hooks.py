"""Call the rules while a script trains: torch's own hooks, and functions wrapped for the time.

Everything is restored at the end. An exception in a rule disables that rule, and is reported. One
in this package ends the watching, and the script runs on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from surestep.doctor import private
from surestep.doctor.runtime.loss_curves import LOSSES, CurveWatcher, LossRecorder
from surestep.doctor.runtime.schedule_recorder import SCHEDULES, ScheduleRecorder, ScheduleWatcher
from surestep.doctor.runtime.windows import WindowWatcher
from surestep.doctor.watch.events import Events
from surestep.doctor.watch.forwards import Forwards
from surestep.doctor.watch.guard import Guard
from surestep.doctor.watch.listeners import Listeners
from surestep.doctor.watch.window_recorder import WINDOWS, WindowRecorder
from surestep.doctor.watch.wrap import replaced, replaced_attributes, without
from surestep.doctor.watcher import Watcher

# By name: what is recorded once for several rules, and the class of these rules.
_RECORDERS: dict[str, tuple[type[Watcher], type[Watcher]]] = {
    WINDOWS: (WindowRecorder, WindowWatcher),
    LOSSES: (LossRecorder, CurveWatcher),
    SCHEDULES: (ScheduleRecorder, ScheduleWatcher),
}


class Monitor:
    """Passes what a script does to the rules.

    Args:
        watchers: of the rules, by code.
        most_steps: that are watched; None for all.
        guard: for the errors of this package.

    Attributes:
        listeners: the rules.
        run: what all rules know.
    """

    def __init__(
        self,
        watchers: dict[str, Watcher],
        most_steps: int | None = None,
        guard: Guard | None = None,
    ) -> None:
        users = {
            name: [code for code, watcher in watchers.items() if isinstance(watcher, kind)]
            for name, (_, kind) in _RECORDERS.items()
        }
        recorders = {name: _RECORDERS[name][0]() for name, codes in users.items() if codes}
        self.listeners = Listeners({**recorders, **watchers}, users, guard)
        self._guard = self.listeners.guard
        self.run = self.listeners.run
        self.run.losses, self.run.schedules = recorders.get(LOSSES), recorders.get(SCHEDULES)
        self._forwards = Forwards(self.listeners)
        self._events = Events(self.listeners, self._forwards)
        self._most_steps = most_steps

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hook torch while the body runs."""
        stack = ExitStack()
        with self._guard:
            self._install(stack)
        try:
            yield
            with self._guard:
                self._events.end_loaders()
            self.run.is_whole = not self.listeners.is_busy
        finally:
            with self._guard:
                stack.close()

    def _install(self, stack: ExitStack) -> None:
        """Hook torch until a stack is closed."""
        stack.callback(self._finish)
        stack.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        stack.callback(register_optimizer_step_post_hook(self._after_step).remove)
        private.list_device_constructors()
        wrappers = list(self._events.list_wrappers())
        script = without(replaced_attributes(wrappers), self._guard)
        for owner, name, wrap in (*wrappers, (torch.jit, "script", script)):
            stack.enter_context(replaced(owner, name, wrap))
        self._forwards.begin_step()

    def _finish(self) -> None:
        self.listeners.stop()
        self._forwards.stop()

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        try:
            if optimizer not in self.run.optimizers:
                self.run.optimizers[optimizer] = None
                self.listeners.call("on_optimizer", optimizer)
            self.listeners.call("on_step", optimizer)
            # `args` begins with the optimizer. A closure calls the model and the loss.
            self.run.in_step = len(args) == 1 and not options
        except Exception as error:
            self._guard.fail(error)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        self.run.in_step = False
        if self.listeners.is_busy:
            return
        try:
            self.run.step += 1
            self.listeners.call("after_step", optimizer)
            if self.run.step == self._most_steps:
                self._finish()
            else:
                self._forwards.begin_step()
        except Exception as error:
            self._guard.fail(error)
