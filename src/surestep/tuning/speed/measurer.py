"""Measures options in processes that are started when they are needed."""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from surestep.laws.compare import Difference, compare_runs
from surestep.laws.record import Place, RunRecord
from surestep.tuning.speed.knob import Options
from surestep.tuning.speed.measuring_process import MeasuringProcess
from surestep.tuning.speed.pair import Pair, PairOfArms, PairOfProcesses
from surestep.tuning.speed.whole_run import WholeRun


class Measurer(ABC):
    """What the ladder measures with. A method raises MeasuringFailed if a process fails.

    Attributes:
        steps: of a window.
        limit_s: how long an answer may take, until the process hangs.
    """

    steps: int = 1
    limit_s: float = 30.0

    @abstractmethod
    def describe(self, options: Options, knobs: Sequence[str]) -> dict[str, Any]:
        """Return what a run with options is, and what each knob has to try for it.

        "present" has what the run has of the options of which knobs try counts.
        """

    @abstractmethod
    def open_pair(
        self, present: Options, candidate: Options, *, is_process_wide: bool
    ) -> AbstractContextManager[Pair]:
        """Open two trainings, in one process or in two."""

    @abstractmethod
    def measure_shares(self, options: Options) -> dict[str, Any]:
        """Return the share of each part of a step, "shares", and "lines" that describe it."""

    @abstractmethod
    def measure_whole(self, options: Options, seconds: float) -> WholeRun | None:
        """Measure the parts of a whole run; None with several ranks, which would share a folder."""

    @abstractmethod
    def find_difference(self, one: Options, other: Options, steps: int) -> Difference | None:
        """Train twice from the start; return the first difference in bits."""

    @abstractmethod
    def train(self, options: Options, steps: int) -> list[float]:
        """Train from the start; return the loss of each step."""


class ProcessMeasurer(Measurer):
    """Measures in processes, one of which stays open.

    Args:
        recipe: name or path of what is trained.
        log: gets what the processes print.
        nproc: ranks of each process.
        limit_s: how long an answer may take, until the process hangs.
    """

    def __init__(self, recipe: str, log: Path, nproc: int, limit_s: float) -> None:
        self.limit_s, self._nproc = limit_s, nproc
        self._start = partial(MeasuringProcess, recipe, log, nproc)
        self._rng = random.Random()  # no run depends on the order of windows
        self._process: MeasuringProcess | None = None
        self._arms: list[str] = []  # that are open, by name

    def _ask(self, **question: Any) -> dict[str, Any]:
        if self._process is None:
            self._process = self._start()
        try:
            return self._process.ask(question, self.limit_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process; another one starts when it is needed."""
        if self._process is not None:
            self._process.end()
        self._process, self._arms = None, []

    def describe(self, options: Options, knobs: Sequence[str]) -> dict[str, Any]:
        """See `Measurer`."""
        return self._ask(do="describe", options=dict(options), knobs=list(knobs))

    @contextmanager
    def open_pair(
        self, present: Options, candidate: Options, *, is_process_wide: bool
    ) -> Iterator[Pair]:
        """See `Measurer`."""
        if is_process_wide:
            self.close()  # its workers would take a part of the cores
            yield PairOfProcesses(
                self._start,
                (present, candidate),
                steps=self.steps,
                limit_s=self.limit_s,
                rng=self._rng,
            )
            return
        first, second = _name(present), f"{_name(candidate)}, the candidate"
        for name in {*self._arms} - {first}:
            self._close_arm(name)
        for name, options in ((first, present), (second, candidate)):
            self._open(name, options)
        for name in (first, second):
            self._ask(do="rewind", arm=name)
        yield PairOfArms(
            lambda number: self._ask(do="window", arm=(first, second)[number], steps=self.steps),
            self._rng,
        )

    def measure_shares(self, options: Options) -> dict[str, Any]:
        """See `Measurer`."""
        name = _name(options)
        for other in {*self._arms} - {name}:
            self._close_arm(other)
        self._open(name, options)
        return self._ask(do="measure_shares", arm=name, steps=self.steps)

    def measure_whole(self, options: Options, seconds: float) -> WholeRun | None:
        """See `Measurer`. It has a new process, since a run sets handlers of signals and more."""
        if self._nproc > 1:
            return None
        self.close()
        found = self._ask(do="measure_whole", options=dict(options), seconds=seconds)
        self.close()
        return WholeRun(**found["whole"])

    def _open(self, name: str, options: Options) -> None:
        if name not in self._arms:
            self._ask(do="open", arm=name, options=dict(options))
            self._arms.append(name)

    def _close_arm(self, name: str) -> None:
        self._ask(do="close", arm=name)
        self._arms.remove(name)

    def find_difference(self, one: Options, other: Options, steps: int) -> Difference | None:
        """See `Measurer`. Each training has a new process, as each run has."""

        def record(options: Options, place: Place | None) -> RunRecord:
            self.close()
            found = self._ask(do="record", options=dict(options), steps=steps, place=place)
            return RunRecord.from_json(found["record"])

        return compare_runs(lambda place: record(one, place), lambda place: record(other, place))

    def train(self, options: Options, steps: int) -> list[float]:
        """See `Measurer`."""
        for name in list(self._arms):
            self._close_arm(name)
        losses: list[float] = self._ask(do="train", options=dict(options), steps=steps)["losses"]
        return losses


def _name(options: Options) -> str:
    return json.dumps(dict(options), sort_keys=True, default=str)
