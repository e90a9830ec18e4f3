"""Count the calls with a mistake by their lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surestep.doctor.watcher import Location, Run

if TYPE_CHECKING:
    from torch import Tensor

_MOST_LINES = 20
_MOST_WAITING = 100  # values of a device that are stored


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
        self._waiting: list[tuple[Mistakes, Tensor]] = []

    def __iter__(self) -> Iterator[Mistakes]:
        """Yield the lines with a mistake; values of devices are read now."""
        for mistakes, flag in self._waiting:
            self._add(mistakes, bool(flag))
        self._waiting.clear()
        return iter(self._mistakes.values())

    def add(self, run: Run, reason: str = "", flag: Tensor | None = None) -> None:
        """Count a call; a reason says what is wrong with it.

        Args:
            run: what is known of the script.
            reason: without it, nothing is wrong.
            flag: one truth value, of whether the reason holds; it is read at the end.
        """
        if reason:
            self.add_seen(run.locate(), run.step + 1, reason, flag)
        else:
            self.calls += 1

    def add_seen(
        self, location: Location, step: int, reason: str, flag: Tensor | None = None
    ) -> None:
        """Count a call of a line and a step that were seen before."""
        if flag is not None and len(self._waiting) >= _MOST_WAITING:
            return
        self.calls += 1
        mistakes = Mistakes(location, step, reason)
        if flag is None:
            self._add(mistakes, True)
        else:
            self._waiting.append((mistakes, flag.detach()))

    def _add(self, mistakes: Mistakes, is_wrong: bool) -> None:
        key = mistakes.location, mistakes.reason
        is_new = key not in self._mistakes
        if not is_wrong or (is_new and len(self._mistakes) >= _MOST_LINES):
            return
        self._mistakes.setdefault(key, mistakes).count += 1
