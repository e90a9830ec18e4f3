"""Calls the rules, and disables one that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

from surestep.doctor import private
from surestep.doctor.runtime.locations import find_location
from surestep.doctor.watch.guard import Guard, describe_error
from surestep.doctor.watch.names import find_modules, find_name
from surestep.doctor.watcher import Script, TorchCall, Watcher

Handler = tuple[str, Callable[..., None]]  # the code of a rule, and its method
_METHODS = tuple(name for name in vars(Watcher) if name.startswith(("on_", "after_")))
_NONE = nullcontext()  # one for all calls, as there are many in a step


class Listeners:
    """The rules that watch.

    Args:
        watchers: of the rules, by code, and the recorders, by name.
        users: the codes of the rules that use a recorder, by its name.
        guard: for the errors of this package.

    Attributes:
        guard: for the errors of this package; those of a rule disable the rule.
        run: what all rules know.
        failures: why a rule was disabled, by its code.
        is_stopped: whether no rule is called any more.
        functions: names of the functions whose calls a rule hears.
    """

    def __init__(
        self,
        watchers: dict[str, Watcher],
        users: Mapping[str, Sequence[str]],
        guard: Guard | None = None,
    ) -> None:
        self.guard = Guard() if guard is None else guard
        self.run = Script(find_location, find_name, find_modules)
        self.guard.attach(self.run, self.stop)
        self._users = users
        self.failures: dict[str, str] = {}
        self._is_busy = self.is_stopped = False
        # Only the rules that have a method pay for its calls, and many only in sampled steps.
        self.functions = {name for watcher in watchers.values() for name in watcher.FUNCTIONS}
        self._handlers: dict[str, list[Handler]] = {
            name: [] for name in (*_METHODS, *self.functions)
        }
        for code, watcher in watchers.items():
            # mypy asks whether a watcher can be hashed, not its class.
            for name in _own_methods(type(watcher)):  # type: ignore[arg-type]
                self._handlers[name].append((code, getattr(watcher, name)))
            for name in dict.fromkeys(watcher.FUNCTIONS):
                self._handlers[name].append((code, watcher.on_call))
        self._unsampled = {
            name: [
                handler
                for handler in handlers
                if ("on_call" if name in self.functions else name)
                not in watchers[handler[0]].SAMPLED
            ]
            for name, handlers in self._handlers.items()
        }

    @property
    def is_busy(self) -> bool:
        """Whether a rule is called now, or none is called any more."""
        return self._is_busy

    def stop(self) -> None:
        """Call no rule any more: the script may keep wrapped functions that it imported."""
        self._is_busy = self.is_stopped = True

    def hear(self, *methods: str) -> bool:
        """Return whether a rule has one of these methods."""
        return any(self._handlers[method] for method in methods)

    def hear_function(self, name: str) -> bool:
        """Return whether a rule hears the calls of a function in this step."""
        return bool(self._list_handlers(name))

    def _list_handlers(self, method: str) -> list[Handler]:
        return (self._handlers if self.run.is_sampled else self._unsampled)[method]

    def call(self, method: str, *args: Any) -> None:
        """Call a method of all rules that have it, unless a rule causes the call.

        With the name of a function, it calls `on_call` of the rules that hear it.
        """
        handlers = self._list_handlers(method)
        if self._is_busy or not handlers:
            return
        # The modes of the script must not see the operations of a rule.
        has_modes = private.count_dispatch_modes() > 0
        if has_modes and private.disable_dispatch_modes is None:
            return
        self._is_busy = True
        try:
            hidden = private.disable_dispatch_modes() if has_modes else _NONE
            with private.DisableTorchFunction(), hidden:
                for code, handler in handlers:
                    try:
                        handler(self.run, *args)
                    except Exception as error:  # of the rule, which must not stop the script
                        if not has_modes:  # else the tensors may be without values
                            self.disable(code, error)
        finally:
            self._is_busy = self.is_stopped

    def call_function(self, call: TorchCall) -> None:
        """Call `on_call` of the rules that hear a function."""
        self.call(call.name, call)

    def disable(self, code: str, error: Exception) -> None:
        """Call a rule no more, or a recorder and all rules that use what it records."""
        rules = self._users.get(code, (code,))
        self.failures |= dict.fromkeys(rules, describe_error(error))
        for lists in (self._handlers, self._unsampled):
            for name, handlers in lists.items():
                lists[name] = [entry for entry in handlers if entry[0] not in (code, *rules)]


@cache
def _own_methods(kind: type[Watcher]) -> tuple[str, ...]:
    """Return the methods that a class overrides."""
    return tuple(name for name in _METHODS if getattr(kind, name) is not getattr(Watcher, name))
