"""Run a command; turn an exception into a message and an exit code."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TextIO

from surestep.base.errors import ConfigError, Preempted, RecipeError, SurestepError
from surestep.base.exit_codes import DONE, FAILED, INTERRUPTED, STOPPED, WRONG_USAGE
from surestep.base.missing_torch import describe_missing_torch, is_missing_torch
from surestep.base.text import print_escaped
from surestep.cli.launch import read_launch
from surestep.cli.stop import print_stop
from surestep.engine.distributed.stop_signals import CTRL_C


class Outcome(NamedTuple):
    """How a command ended.

    Attributes:
        code: its exit code.
        reason: what ended it; "" if nothing did.
        is_error: an error ended it, which was printed.
    """

    code: int
    reason: str = ""
    is_error: bool = False


def run_guarded(run: Callable[[], int], command: str, *, failed: int = FAILED) -> Outcome:
    """Run a command; print the error that ends it.

    Args:
        run: returns the exit code.
        command: its name.
        failed: the exit code of an error that is not in what was typed.
    """
    try:
        with _explain_missing_torch(command):
            return Outcome(run())
    except Preempted as stopped:
        print_stop(stopped)
        return Outcome(STOPPED, stopped.reason)
    except SurestepError as error:
        notes = getattr(error, "__notes__", [])
        text = "\n".join([f"{type(error).__name__}: {error}", *notes])
        _report(text)
        is_usage_error = isinstance(error, (ConfigError, RecipeError))
        return Outcome(WRONG_USAGE if is_usage_error else failed, text, is_error=True)
    except KeyboardInterrupt:
        return Outcome(INTERRUPTED, CTRL_C)
    except BrokenPipeError:  # the reader, such as `head`, closed the pipe
        drop_output(sys.stdout)
        return Outcome(DONE)
    except Exception as error:  # Python itself would print control characters unescaped
        _report(traceback.format_exc().rstrip())
        return Outcome(FAILED, f"{type(error).__name__}: {error}", is_error=True)


@contextmanager
def _explain_missing_torch(command: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if not is_missing_torch(error):
            raise
        raise ConfigError(describe_missing_torch(f"surestep {command}")) from error


def _report(text: str) -> None:
    """Print an error; if there are several ranks, with the rank."""
    launched = read_launch()
    prefix = f"Rank {launched.rank}: " if launched.size > 1 else ""
    print_escaped(f"{prefix}{text}", file=sys.stderr)


def drop_output(stream: TextIO) -> None:
    """Discard what is printed to a stream from now on, and what it has not written yet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
