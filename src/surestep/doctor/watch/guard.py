"""Keep the errors of this package from the script that it watches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from surestep.base.text import one_line
from surestep.doctor.watcher import Script

_LONGEST = 200  # characters of an error that are shown
_PACKAGE = Path(__file__).parents[2]


class Guard:
    """Ends the watching at the first error of this package, and says so; the script runs on.

    As a context manager, it does so for an error of the body. Code that runs often calls `fail`
    in an `except`, which takes no time without an error.

    Attributes:
        stopped_at: the step at which the watching ended; None without an error.
        has_ended: whether the script has.
    """

    def __init__(self) -> None:
        self.stopped_at: int | None = None
        self.has_ended = False
        self._run: Script | None = None
        self._stop: Callable[[], None] = lambda: None

    def attach(self, run: Script, stop: Callable[[], None]) -> None:
        """Call a function when the watching of a run ends."""
        self._run, self._stop = run, stop

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):  # Ctrl-C is for the script
            return False
        self.fail(error)
        return True

    def fail(self, error: Exception) -> None:
        """End the watching because of an error of this package."""
        if self.stopped_at is not None:
            return
        self.stopped_at = 0 if self._run is None else self._run.step
        with suppress(Exception):  # this error is reported, not another one that follows
            self._stop()
        with suppress(Exception):  # of stderr, which may be closed
            rest = "" if self.has_ended else " The script runs on."
            why = f"{describe_error(error)}{_locate(error)}."
            text = f"surestep watch stopped watching at step {self.stopped_at}: {why}{rest}"
            print(one_line(text), file=sys.stderr, flush=True)


def describe_error(error: Exception) -> str:
    """Return the class of an error, and the first line of its text, if it can be read."""
    text = ""
    with suppress(Exception):  # of the method of its class, or of an object in it
        text = next(iter(str(error).splitlines()), "")  # some of torch are a page long
    return f"{type(error).__name__}: {text[:_LONGEST]}" if text else type(error).__name__


def _locate(error: Exception) -> str:
    """Return the innermost line of this package in the traceback of an error."""
    place, entry = "", error.__traceback__
    while entry is not None:  # `extract_tb` would read the sources, perhaps as the script imports
        path = Path(entry.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            name = path.relative_to(_PACKAGE).as_posix().partition(":")[0]  # see wrap.wraps
            place = f" ({name}, line {entry.tb_lineno})"
        entry = entry.tb_next
    return place
