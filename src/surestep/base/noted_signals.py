"""Note signals while a command imports what acts on them.

Imports `signal` alone: a signal that arrives before has its usual effect.
"""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Self

NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
NUMBERS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


class NotedSignals:
    """Notes the signals that stop a command until it sends them again; a context manager.

    The handlers of a host program are never replaced. Shells let background processes ignore
    Ctrl-C; `kill -INT` must stop a command all the same, so that one is noted too. Outside of the
    main thread it does nothing.

    Attributes:
        replaced: the handlers of before, by number.
    """

    def __init__(self) -> None:
        self.replaced: dict[int, Any] = {}
        self._numbers: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note a signal."""
        self._numbers.append(number)

    def __enter__(self) -> Self:
        """Note signals from now on."""
        for number in NUMBERS:
            is_ignored = signal.getsignal(number) == signal.SIG_IGN
            if is_default(number) or (is_ignored and number == signal.SIGINT):
                try:
                    self.replaced[number] = signal.signal(number, self)
                except ValueError:  # this is not the main thread
                    break
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers that nothing has replaced since."""
        for number, handler in self.replaced.items():
            if signal.getsignal(number) is self:
                signal.signal(number, handler)

    def send_again(self) -> None:
        """Note no more signals, and act on those that were noted as if they arrived now."""
        self.__exit__()
        numbers, self._numbers = self._numbers, []
        for number in numbers:
            signal.raise_signal(number)


def is_default(number: int) -> bool:
    """Return whether a signal is neither handled nor ignored."""
    handler = signal.getsignal(number)
    is_ctrl_c = number == signal.SIGINT and handler == signal.default_int_handler
    return is_ctrl_c or bool(handler == signal.SIG_DFL)
