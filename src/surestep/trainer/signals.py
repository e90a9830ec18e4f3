"""What a signal does: the run stops after the step, is saved, and can go on.

Ctrl-C is a person, SIGTERM whoever ends processes, SIGUSR1 Slurm, that time is nearly up, SIGHUP a
terminal that was closed. A step asks nothing of them: it ends as always, and then the loop looks at
a flag of Python's.
"""

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from surestep.base.text import escape_control_chars
from surestep.engine.distributed.communicator import SIGNALS
from surestep.engine.distributed.launcher_env import BY_NPROC, read_launched
from surestep.trainer.session import Session

_NAMES = dict(
    zip((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP), SIGNALS, strict=True)
)

_POLL_S = 0.5  # after so long a rank has noticed that its launcher is gone
_FROM = " (torchrun sends it to all where a process has died)"


@contextmanager
def interruptible(session: Session) -> Iterator[list[str]]:
    """Let the first signal stop after the step, and Ctrl-C after it at once.

    Yields what came, by name. More of the others change nothing: launchers send several. A
    handler of the user's own stays, and that signal is theirs. In other threads than the main one
    Python has no signals.
    """
    came: list[str] = []
    is_torchruns = read_launched().launcher in ("torchrun", "accelerate launch", BY_NPROC)

    def on_signal(number: int, frame: FrameType | None) -> None:
        name = _NAMES[signal.Signals(number)]
        if name == "SIGHUP":
            _detach_terminal()
        if came and name == "Ctrl-C":
            raise KeyboardInterrupt
        if came:
            return
        came.append(name)
        session.loop.interrupt(name)
        by = _FROM if is_torchruns and name == "SIGTERM" else ""
        again = "Once more" if name == "Ctrl-C" else "Ctrl-C"
        _say(session, f"{name}{by}: stopping after this step. {again} stops at once.")

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in _NAMES:
                if not _is_taken(number):
                    stack.callback(signal.signal, number, signal.signal(number, on_signal))
            if is_torchruns:
                stack.callback(_watch_launcher().set)
        yield came


def _watch_launcher() -> threading.Event:
    """Send this rank SIGTERM as soon as its launcher is gone, until the event is set.

    torchrun ends its ranks when it ends, unless it was killed by SIGKILL. Nobody would end or
    restart them then, and they would hold the run folder and their devices.
    """
    over, launcher = threading.Event(), os.getppid()

    def wait() -> None:
        while not over.wait(_POLL_S):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=wait, name="surestep-launcher", daemon=True).start()
    return over


def _is_taken(number: signal.Signals) -> bool:
    """Say whether somebody handles or ignores a signal on purpose.

    Shells let what they start in the background ignore Ctrl-C; `kill -INT` is meant all the same.
    """
    there = signal.getsignal(number)
    if number == signal.SIGINT:
        return there not in (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN)
    return there is not signal.SIG_DFL


def _detach_terminal() -> None:
    """Point stdout and stderr nowhere if their terminal is gone: to write there is an error."""
    for number in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)


def _say(session: Session, text: str) -> None:
    try:
        session.print_line(text)
    except RuntimeError:  # the step was printing: a file that is written to cannot be entered again
        os.write(2, f"{escape_control_chars(text)}\n".encode())
