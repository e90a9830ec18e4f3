"""Signals that arrive while a command does not train: before the first step and after the last."""

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from surestep.base.errors import Preempted
from surestep.base.exit_codes import INTERRUPTED, STOPPED
from surestep.base.noted_signals import NotedSignals
from surestep.base.text import print_escaped
from surestep.cli.launch import read_launch
from surestep.engine.distributed.stop_signals import StopSignals, raise_stop

TRAINING = ("train", "resume", "search", "tune")


def run_stoppable(run: Callable[[list[str]], int], words: list[str], noted: NotedSignals) -> int:
    """Run a command; return its exit code.

    Args:
        run: imports what runs commands, and runs one.
        words: of the command line.
        noted: the signals that arrived before; they take effect at its start.
    """
    try:
        with handle_early_signals(words) as signals:
            try:
                noted.send_again()
                return run(words)
            finally:
                if signals is not None:  # Ctrl-C in Python's own end would print a traceback
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Preempted as stopped:
        print_stop(stopped)
        return STOPPED


def handle_early_signals(words: Sequence[str]) -> AbstractContextManager[object]:
    """Have signals stop a command that trains, as long as nothing in it handles them.

    Args:
        words: of the command line, perhaps with a launcher's options before the command.
    """
    command = next((word for word in words if not word.startswith("-")), "")
    if command not in TRAINING:
        return nullcontext()
    again = "Run the same command again."
    return StopSignals(partial(raise_stop, f"Stopped by {{name}} before training began. {again}"))


def handle_late_signals() -> StopSignals:
    """Have signals stop a command that prints what it has trained."""
    return StopSignals(partial(raise_stop, "Training had ended when {name} arrived."))


def print_stop(stopped: Preempted) -> None:
    """Print on rank 0 what stopped the command, unless it was printed before."""
    if not stopped.is_printed and read_launch().rank == 0:
        print_escaped(str(stopped), file=sys.stderr)
    stopped.is_printed = True
