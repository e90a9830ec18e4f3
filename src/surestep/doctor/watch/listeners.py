"""Calls the rules, and disables one that fails."""

from __future__ import annotations

from typing import Any

from surestep.doctor.watch.location import find_location
from surestep.doctor.watch.names import find_modules, find_name
from surestep.doctor.watcher import Run, Watcher

_HOOKS = "hooks"  # among the failures: of this package, and of no rule


class Listeners:
    """The rules that watch.

    Args:
        watchers: of the rules, by code.

    Attributes:
        run: what all rules know.
        failures: why a rule was disabled, by its code.
        functions: names of the functions whose calls a rule hears.
    """

    def __init__(self, watchers: dict[str, Watcher]) -> None:
        self.run = Run(find_location, find_name, find_modules)
        self.failures: dict[str, str] = {}
        self._watchers = dict(watchers)
        self._is_busy = False
        # Only the rules that have a method pay for its calls.
        self._codes = {
            name: [code for code, watcher in watchers.items() if _overrides(watcher, name)]
            for name in vars(Watcher)
            if name.startswith(("on_", "after_"))
        }
        self.functions = {name for watcher in watchers.values() for name in watcher.FUNCTIONS}

    @property
    def is_busy(self) -> bool:
        """Whether a rule is called now, or none is called any more."""
        return self._is_busy

    def stop(self) -> None:
        """Call no rule any more: the script may keep wrapped functions that it imported."""
        self._is_busy = True

    def hear(self, *methods: str) -> bool:
        """Return whether a rule has one of these methods."""
        return any(self._codes[method] for method in methods)

    def call(self, method: str, *args: Any) -> None:
        """Call a method of all rules that have it, unless a rule causes the call."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            for code in tuple(self._codes[method]):
                watcher = self._watchers[code]
                if method == "on_call" and args[0].name not in watcher.FUNCTIONS:
                    continue
                try:
                    getattr(watcher, method)(self.run, *args)
                except Exception as error:  # of the rule, which must not stop the script
                    self.disable(code, error)
        finally:
            self._is_busy = False

    def disable(self, code: str, error: Exception) -> None:
        """Call a rule no more."""
        self.failures[code] = f"{type(error).__name__}: {error}"
        for codes in self._codes.values():
            if code in codes:
                codes.remove(code)

    def fail(self, error: Exception) -> None:
        """Remember an error of this package."""
        self.disable(_HOOKS, error)


def _overrides(watcher: Watcher, name: str) -> bool:
    return getattr(type(watcher), name) is not getattr(Watcher, name)
