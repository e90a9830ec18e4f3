"""The file of one rank: what it says, warns of and fails with, beside or instead of a terminal."""

import io
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from surestep.base.text import escape_control_chars, print_escaped
from surestep.engine.distributed.communicator import Communicator

FOLDER = "log"


class TeeStream(io.TextIOBase):
    """Writes into a rank's file, and to a terminal where this rank has one.

    Args:
        file: of the rank.
        terminal: that was written to until now.
        shows: whether it still is.
    """

    def __init__(self, file: TextIO, terminal: TextIO, *, shows: bool) -> None:
        self._file = file
        self.terminal = terminal
        self.shows = shows

    def write(self, text: str) -> int:
        """Write a text where it belongs."""
        self._keep(text)
        if self.shows:
            self.terminal.write(text)
        return len(text)

    def flush(self) -> None:
        """Let nothing wait; the file never does."""
        self.terminal.flush()

    def file_stream(self) -> "TeeStream":
        """Return what writes into the file only."""
        return TeeStream(self._file, self.terminal, shows=False)

    def fileno(self) -> int:
        """Return the terminal's, for who writes past Python."""
        return self.terminal.fileno()

    def writable(self) -> bool:
        """Say that it is."""
        return True

    def isatty(self) -> bool:
        """Say whether somebody may look at it while it is written."""
        return self.shows and self.terminal.isatty()

    def everywhere(self, text: str) -> None:
        """Write a line that nobody may miss, to the terminal too."""
        self._keep(f"{escape_control_chars(text)}\n")
        print_escaped(text, self.terminal)

    def _keep(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError as error:  # a log that cannot be written ends no training
            if not self.shows:
                self.terminal.write(f"A rank's log cannot be written: {error.strerror}.\n")
            self.shows = True


def print_all(text: str) -> None:
    """Print a line on stderr that nobody may miss, whatever the rank shows otherwise."""
    if isinstance(sys.stderr, TeeStream):
        sys.stderr.everywhere(text)
    else:
        print_escaped(text, sys.stderr)


@contextmanager
def rank_log(folder: Path, world: Communicator, *, on: bool) -> Iterator[TeeStream | None]:
    """Write what this rank prints into `folder`/log/rank-RANK.txt, until the session closes.

    The first rank prints it too. An error that ends the session is written with its traceback.

    Args:
        folder: of the run.
        world: the ranks.
        on: else nothing is changed, and None returned.

    Raises:
        OSError: the file cannot be opened.
    """
    if not on:
        yield None
        return
    before = sys.exception()
    path = folder / FOLDER / f"rank-{world.rank:05d}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    # A file of a process that is killed has to be whole up to that moment: a line at a time.
    file = path.open("a", encoding="utf-8", buffering=1)
    file.write(f"--- rank {world.rank} of {world.size}, {datetime.now():%Y-%m-%d %H:%M:%S}\n")
    errors = TeeStream(file, sys.stderr, shows=world.is_first)
    answers = TeeStream(file, sys.stdout, shows=world.is_first)
    try:
        with redirect_stderr(errors), redirect_stdout(answers):
            yield errors
    finally:
        error = sys.exception()
        with suppress(OSError):  # the caller raises the error itself
            if error is not None and error is not before:
                file.writelines(traceback.format_exception(error))
        with suppress(OSError):
            file.close()
