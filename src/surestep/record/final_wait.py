"""Wait at the end of a run until what it recorded is sent, with a bar that Ctrl-C ends."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # it imports torch, which sending does not need
    from surestep.record.progress_display import NullProgress

_SILENT_S = 5.0  # before there is a bar: most runs end earlier
_POLL_S = 0.05


class Sent(NamedTuple):
    """How many bytes have been sent, and of how many."""

    done: int
    total: int


class Sender(Protocol):
    """Sends what a run has recorded, in a thread.

    Attributes:
        name: of the destination, for the bar.
    """

    name: str

    def finish(self) -> None:
        """Send what is left, and end."""

    def wait(self, seconds: float) -> bool:
        """Wait for at most this long; return whether the thread has ended."""

    def has_stalled(self) -> bool:
        """Return whether it has failed or hung for so long that it probably never ends."""

    def count_sent(self) -> Sent:
        """Return how much has been sent."""


def wait_until_sent(
    senders: Sequence[Sender],
    display: "NullProgress | None",
    *,
    limit_s: float,
    report: Callable[[], None],
) -> None:
    """Send what is left: until nothing moves any more, or the limit or Ctrl-C ends the wait.

    Ctrl-C is not raised again: the run has ended, and its results are printed next.

    Args:
        senders: what sends.
        display: shows a bar after some seconds; None shows none.
        limit_s: the longest time to wait, in seconds.
        report: prints messages of the senders; called again and again.
    """
    began, bar = time.monotonic(), None
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        for sender in senders:
            sender.finish()
        while waiting := [
            sender for sender in senders if not (sender.wait(_POLL_S) or sender.has_stalled())
        ]:
            report()
            waited_s = time.monotonic() - began
            if waited_s > limit_s:
                break
            if display is not None and bar is None and waited_s > _SILENT_S:
                names = ", ".join(sender.name for sender in waiting)
                bar = stack.enter_context(display.show_transfer(names))
            if bar is not None:
                counts = [sender.count_sent() for sender in senders]
                bar(sum(sent.done for sent in counts), sum(sent.total for sent in counts))
    report()
