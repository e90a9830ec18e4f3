"""How far a mirror is: when the copying last got further, and what it has not answered yet."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LONGEST_S = 300.0  # without progress in a call of a driver, before it is cancelled
_POLL_S = 1.0
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
        on_change: called when it gets further.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self._operations: dict[str, _Operation] = {}
        self.restart()

    def restart(self) -> None:
        """Count attempts from now on."""
        self.at = time.monotonic()
        for operation in list(self._operations.values()):
            operation.attempts = 0

    def done(self, name: str) -> int:
        """Return how much of an operation is done: the most of any attempt."""
        operation = self._operations.get(name)
        return 0 if operation is None else operation.done

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
                self.on_change()

        return note


class TimedCalls:
    """A file system, which knows since when a call of it has not returned.

    A call of a driver that uses asyncio, such as that of S3, ends if it makes no progress for
    LONGEST_S: aiohttp waits for ever for a server that it asks whether to send a body.

    Args:
        fs: whose methods it has.
        progress: of what is uploaded.
    """

    def __init__(self, fs: Any, progress: Progress) -> None:
        self._fs = fs
        self._progress = progress
        self._began: dict[object, float] = {}  # when each call began that has not returned

    @contextmanager
    def waiting(self) -> Iterator[object]:
        """Count the body as a call; yield its key."""
        key = object()
        self._began[key] = time.monotonic()
        try:
            yield key
        finally:
            del self._began[key]

    def silent_s(self, key: object = None) -> float:
        """Return for how many seconds a call has made no progress; by default, the oldest call."""
        began = [self._began[key]] if key is not None else list(self._began.values())
        return max(0.0, time.monotonic() - max(min(began), self._progress.at)) if began else 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._fs, name)
        wrapped = getattr(method, "__wrapped__", None)  # the coroutine that fsspec runs
        is_async = inspect.iscoroutinefunction(wrapped)
        own = (self._fs,) if inspect.ismethod(method) else ()

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.waiting() as key:
                if is_async and wrapped is not None:
                    return self._run(key, wrapped(*own, *args, **kwargs))
                return method(*args, **kwargs)

        return call

    def _run(self, key: object, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of the driver in its loop; cancel it if it makes no progress."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._fs.loop)
        try:
            while not wait([future], timeout=_POLL_S).done:
                if (silent_s := self.silent_s(key)) > LONGEST_S:
                    raise TimeoutError(f"it has not answered for {silent_s:.0f} s")
            return future.result()
        finally:
            future.cancel()
