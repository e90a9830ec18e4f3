"""What the first Ctrl-C does, and the second."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from surestep.trainer.session import Session


@contextmanager
def interruptible(session: Session) -> Iterator[list[str]]:
    """Let the first Ctrl-C stop after the step, and the second one at once."""
    interrupted: list[str] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append("Ctrl-C")
        session.loop.interrupted = True
        session.loop.stopping = "Ctrl-C"
        session.say("Ctrl-C: stopping after this step. Once more stops at once.")

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
