"""What a live page shows, in versions: a page asks for what is newer than what it has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Condition
from typing import Any


class News:
    """The content of a page, which one thread publishes and any number of others read.

    Parts are the values of the page by name: numbers, tables and whole charts. Increments are what
    charts grow by. Once they are many, the charts are published whole again and the increments are
    dropped, so that they need no more memory than the charts.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._version = 0
        self._first = 0  # a page of an older version is of other runs
        self._parts: dict[str, tuple[int, Any]] = {}
        self._increments: list[tuple[int, Mapping[str, Any]]] = []
        self._status: dict[str, Any] = {}
        self._written: float | None = None
        self._asked_at = time.monotonic()

    @property
    def increments(self) -> int:
        """How many increments there are since the charts were published whole."""
        return len(self._increments)

    def publish(
        self,
        parts: Mapping[str, Any] | None = None,
        *,
        charts: Mapping[str, Any] | None = None,
        increment: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish together what belongs together.

        Args:
            parts: that replace those before, if they differ.
            charts: whole, in which all increments are now.
            increment: what charts grow by.
        """
        with self._changed:
            self._version += 1
            if charts is not None:
                self._increments.clear()
            if increment is not None:
                self._increments.append((self._version, increment))
            for name, value in {**(parts or {}), **(charts or {})}.items():
                if name not in self._parts or self._parts[name][1] != value:
                    self._parts[name] = (self._version, value)

    def restart(self) -> None:
        """Have all pages loaded again: another run has replaced the one before."""
        with self._changed:
            self._version += 1
            self._first = self._version

    def report(self, written: float | None, **status: Any) -> None:
        """Set what each answer has: the state of the runs, and when one of them was written to."""
        with self._changed:
            self._status, self._written = status, written

    def read_page(self) -> dict[str, Any]:
        """Return the whole content of a page."""
        with self._changed:
            live = self._read(self._version) | {
                "increments": [increment for _, increment in self._increments]
            }
            return {name: value for name, (_, value) in self._parts.items()} | {"live": live}

    def read(self, version: int) -> dict[str, Any]:
        """Return what is newer than a version of the content.

        Returns:
            "version" for the next call, "parts" by name, "increments", and the status; only
            "is_other" if the page has to be loaded again.
        """
        with self._changed:
            if not self._first <= version <= self._version:
                return {"is_other": True}
            return self._read(version)

    def _read(self, version: int) -> dict[str, Any]:
        self._asked_at = time.monotonic()
        self._changed.notify_all()
        age = None if self._written is None else max(0.0, time.time() - self._written)
        return {
            "version": self._version,
            "parts": {name: part for name, (at, part) in self._parts.items() if at > version},
            "increments": [increment for at, increment in self._increments if at > version],
            "age_s": age,
            **self._status,
        }

    def wait_for_page(self, idle_s: float) -> None:
        """Wait until a page asks, if none has asked for so many seconds."""
        with self._changed:
            while time.monotonic() - self._asked_at > idle_s:
                self._changed.wait()
