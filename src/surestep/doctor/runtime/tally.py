"""Count what a rule checks while a script runs, and the mistakes in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import NOWHERE, Location, Problem
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch import Tensor

FEWEST = 3  # mistakes: one or two may be meant, such as those after a loss that is not finite
_MOST_LINES = 20
_MOST_WAITING = 100  # values of a device that are stored


class Occurrence:
    """Something that was seen while a script ran.

    Attributes:
        location: where it was first.
        since_step: when it was first, from 1.
    """

    location: Location
    since_step: int

    def report(self, message: str, evidence: Mapping[str, Any]) -> Problem:
        """Return the problem that it is."""
        return Problem(message, evidence, location=self.location, since_step=self.since_step)


@dataclass
class Tally(Occurrence):
    """How often a rule checked something, such as the steps of an optimizer, and it was wrong.

    Attributes:
        checked: how often.
        mistakes: how often it was wrong.
        since_step: of the first mistake.
        location: of the first mistake.
        most: the largest `size` of a mistake.
        reason: what is wrong, if not all mistakes of the rule are the same.
    """

    checked: int = 0
    mistakes: int = 0
    since_step: int = 0
    location: Location = NOWHERE
    most: int = 0
    reason: str = ""

    def add(self, location: Location, step: int, size: int = 0) -> None:
        """Count a mistake at a line, in a step from 1."""
        self.mistakes += 1
        self.most = max(self.most, size)
        if self.mistakes == 1:
            self.since_step, self.location = step, location

    def add_here(self, run: Script, size: int = 0) -> None:
        """Count a mistake at the line that is being executed, which is looked for once."""
        self.add(self.location if self.mistakes else run.locate(), run.step + 1, size)

    @property
    def is_usual(self) -> bool:
        """Whether most of what was checked is wrong, and not only a few times."""
        return self.mistakes >= FEWEST and 2 * self.mistakes > self.checked


class LineTally:
    """The calls that a rule checked, with a tally for each line and reason.

    Attributes:
        calls: how many.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._tallies: dict[tuple[Location, str], Tally] = {}
        self._waiting: list[tuple[Location, int, str, Tensor]] = []

    def __iter__(self) -> Iterator[Tally]:
        """Yield the tallies of lines with a mistake; values of devices are read now."""
        for location, step, reason, flag in self._waiting:
            if bool(flag):
                self._add(location, step, reason)
        self._waiting.clear()
        return iter(self._tallies.values())

    def add(self, run: Script, reason: str = "", flag: Tensor | None = None) -> None:
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
        if flag is None:
            self._add(location, step, reason)
        else:
            self._waiting.append((location, step, reason, flag.detach()))

    def _add(self, location: Location, step: int, reason: str) -> None:
        key = location, reason
        if key in self._tallies or len(self._tallies) < _MOST_LINES:
            self._tallies.setdefault(key, Tally(reason=reason)).add(location, step)
