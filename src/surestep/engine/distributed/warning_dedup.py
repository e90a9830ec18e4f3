"""Python warnings of several ranks: what all of them warn of is shown once."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.launcher_env import read_launched


class WarningDeduplicator:
    """Stands where `warnings.showwarning` stood, and lets the rank that is first to warn show it.

    What is warned of before the ranks know of each other waits until they do.
    """

    def __init__(self) -> None:
        self._show = warnings.showwarning
        self._world: Communicator | None = None
        self._waiting: list[tuple[Any, ...]] = []

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Show a warning, unless another rank has shown the same."""
        given = (message, category, filename, lineno, file, line)
        if self._world is None:
            self._waiting.append(given)
        elif self._world.claim_message(f"{category.__name__}: {message}"):
            rank = self._world.rank
            text = message if rank == 0 else f"rank {rank}: {message}"
            self._show(text, *given[1:])

    def flush(self, world: Communicator) -> None:
        """Show what waited, and from now on what comes.

        Args:
            world: the ranks of which one shows a warning; `ALONE` where each shows its own.
        """
        self._world = world
        waiting, self._waiting = self._waiting, []
        for given in waiting:
            self(*given)


@contextmanager
def dedupe_warnings() -> Iterator[WarningDeduplicator | None]:
    """Show once what several ranks warn of; None in one process, where nothing is changed."""
    if read_launched().size == 1:
        yield None
        return
    own = warnings.showwarning = WarningDeduplicator()
    try:
        yield own
    finally:
        if warnings.showwarning is own:  # else someone who catches warnings puts it back
            warnings.showwarning = own._show
        own.flush(own._world or ALONE)
