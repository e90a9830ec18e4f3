"""Count the calls with a mistake by their lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from surestep.doctor.watcher import Location, Run

_MOST = 20  # lines


@dataclass
class Mistakes:
    """The calls of one line with a mistake.

    Attributes:
        location: the line.
        since_step: of the first, from 1.
        reason: what is wrong.
        count: how many.
    """

    location: Location
    since_step: int
    reason: str
    count: int = 0


class Tally:
    """The calls that a rule checked.

    Attributes:
        calls: how many.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._mistakes: dict[tuple[Location, str], Mistakes] = {}

    def __iter__(self) -> Iterator[Mistakes]:
        return iter(self._mistakes.values())

    def add(self, run: Run, reason: str = "") -> None:
        """Count a call; a reason says what is wrong with it."""
        self.calls += 1
        if not reason:
            return
        key = run.locate(), reason
        if key not in self._mistakes:
            if len(self._mistakes) >= _MOST:
                return
            self._mistakes[key] = Mistakes(key[0], run.step + 1, reason)
        self._mistakes[key].count += 1
