"""Two trainings that are compared: one with the options so far, one with those of a candidate."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from statistics import median

from surestep.tuning.speed.knob import Options
from surestep.tuning.speed.measuring_process import MeasuringProcess

Window = Mapping[str, float]
_WINDOWS_OF_START = 3  # of each process, until both are started again


class Pair(ABC):
    """Two trainings, of which windows are taken in rounds.

    Attributes:
        start_s: what the start of each took, with its first steps.
        first_epoch_s: how much longer the first epoch of each takes.
        step_s: the times a step that were measured of each.
        wait_s: how long a step waited for data, of each.
    """

    def __init__(self) -> None:
        self.start_s = self.first_epoch_s = (0.0, 0.0)
        self.step_s: tuple[list[float], list[float]] = ([], [])
        self.wait_s: tuple[list[float], list[float]] = ([], [])

    def measure_round(self) -> float:
        """Take a window of each; return the ratio of the times a step."""
        windows = first, second = self.take_windows()
        for number, window in enumerate(windows):
            self.step_s[number].append(window["seconds"])
            self.wait_s[number].append(window["wait_s"])
        self.start_s = first["start_s"], second["start_s"]
        self.first_epoch_s = first["first_epoch_s"], second["first_epoch_s"]
        return self.step_s[1][-1] / self.step_s[0][-1]

    @abstractmethod
    def take_windows(self) -> tuple[Window, Window]:
        """Take a window of each, in an order that is drawn again each time."""


class PairOfArms(Pair):
    """Two arms of one process.

    Args:
        take: takes a window of the first (0) or the second (1).
        rng: draws the order.
    """

    def __init__(self, take: Callable[[int], Window], rng: random.Random) -> None:
        super().__init__()
        self._take, self._rng = take, rng

    def take_windows(self) -> tuple[Window, Window]:
        """Take a window of each."""
        taken = {number: self._take(number) for number in self._rng.sample((0, 1), 2)}
        return taken[0], taken[1]


class PairOfProcesses(Pair):
    """Two processes, which are started again in each round: what differs between starts counts.

    The window of a round is the median of some of each.

    Args:
        start: starts a process.
        options: of both.
        steps: of a window.
        limit_s: how long an answer may take.
        rng: draws the order.
    """

    def __init__(
        self,
        start: Callable[[], MeasuringProcess],
        options: tuple[Options, Options],
        *,
        steps: int,
        limit_s: float,
        rng: random.Random,
    ) -> None:
        super().__init__()
        self._start, self._options, self._rng = start, options, rng
        self._window = {"do": "window", "arm": "only", "steps": steps}
        self._limit_s = limit_s

    def take_windows(self) -> tuple[Window, Window]:
        """Take windows of two new processes."""
        processes: list[MeasuringProcess] = []
        try:
            for options in self._options:
                processes.append(self._start())
                question = {"do": "open", "arm": "only", "options": dict(options)}
                processes[-1].ask(question, self._limit_s)
            windows: tuple[list[Window], list[Window]] = ([], [])
            for _ in range(_WINDOWS_OF_START):
                for number in self._rng.sample((0, 1), 2):
                    windows[number].append(processes[number].ask(self._window, self._limit_s))
        finally:
            for process in processes:
                process.end()
        return _find_median(windows[0]), _find_median(windows[1])


def _find_median(windows: list[Window]) -> Window:
    return {name: median(one[name] for one in windows) for name in windows[0]}
