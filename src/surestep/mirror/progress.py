"""How far a mirror is: when the copying last got further, and what it has not answered yet."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_ATTEMPTS = 3  # at an operation, before only what was never done counts as progress


@dataclass
class _Operation:
    content: str
    attempts: int = 0
    done: int = 0


class Progress:
    """When the copying last got further, by the monotonic clock.

    What fails and is done again gets no further after a few attempts, however much of it succeeds
    each time. So a mirror that takes everything but one file makes no progress.

    Attributes:
        at: when it got further, or was restarted.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was done."""
        self.at = time.monotonic()
        self._operations: dict[str, _Operation] = {}

    def begin(self, name: str, content: str = "") -> Callable[[int], None]:
        """Begin an attempt at an operation.

        Args:
            name: of the operation, such as "upload" and the name of a file.
            content: what distinguishes it from an earlier one of this name, such as a hash.

        Returns:
            A function to be called with how much is done, such as a number of bytes.
        """
        operation = self._operations.get(name)
        if operation is None or operation.content != content:
            operation = self._operations[name] = _Operation(content)
        operation.attempts += 1
        if operation.attempts <= _ATTEMPTS:
            operation.done = 0

        def note(done: int) -> None:
            if done > operation.done:
                operation.done, self.at = done, time.monotonic()

        return note


class TimedCalls:
    """A file system, which knows since when a call of it has not returned.

    Args:
        fs: whose methods it has.
    """

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self._began: dict[object, float] = {}  # when each call began that has not returned

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the body as a call."""
        key = object()
        self._began[key] = time.monotonic()
        try:
            yield
        finally:
            del self._began[key]

    def silent_s(self, since: float) -> float:
        """Return for how many seconds the longest call has waited, at most since a time."""
        began = list(self._began.values())
        return max(0.0, time.monotonic() - max(min(began), since)) if began else 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.waiting():
                return getattr(self._fs, name)(*args, **kwargs)

        return call
