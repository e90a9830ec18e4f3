"""Trains a program again and again, each time in a new process, and compares the runs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError
from surestep.laws.compare import Difference, compare_records
from surestep.laws.processes import Call, Method, Outcome, call_in_processes
from surestep.laws.program import Facts, Program, describe_program
from surestep.laws.record import KINDS, Place, RunRecord, StepRecord
from surestep.laws.run import Recorded, Variant, train
from surestep.laws.trace import find_module

_OF_STATE = ("parameters", "buffers", "optimizer state")
_Select = Callable[[RunRecord], RunRecord]


class RunFailedError(Exception):
    """A run of the program raised an error, or was killed by a signal that no one sent.

    Attributes:
        kind: the class of the error.
    """

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Finding:
    """What makes two runs differ.

    Attributes:
        difference: the first value that differs.
        source: the module or the line of code that computed it; "" if it is not known.
    """

    difference: Difference
    source: str = ""


class Runner:
    """Trains a program in new processes, until its time is over.

    Attributes:
        program: what is trained.
        facts: what is known of it.
        base: the run as it is, from its start.

    Args:
        program: what is trained.
        folder: a temporary one, for the runs.
        at_once: how many processes run at once.
        end: when the time is over, in seconds of `time.monotonic()`.
    """

    def __init__(self, program: Program, folder: Path, *, at_once: int, end: float) -> None:
        self.program, self._folder, self._at_once, self._end = program, folder, at_once, end
        self._numbers = count(1)
        (described,) = self.call(Call(describe_program, self.make_folder(), (program,)))
        if described.error or described.signal:
            raise ConfigError(f"The program cannot be planned. {_explain(described)}")
        self.facts: Facts = described.value
        self.program = replace(program, steps=min(program.steps, self.facts.total_steps))
        self.base = self.train(Variant("no change"))

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self._end - time.monotonic()

    def make_folder(self) -> Path:
        """Return a new folder for a process; it is created when the process starts."""
        return self._folder / str(next(self._numbers))

    def call(self, *calls: Call) -> list[Outcome]:
        """Call functions in new processes; return their outcomes in order.

        Raises:
            TimeIsOverError: there is no time left.
        """
        return call_in_processes(calls, at_once=self._at_once, end=self._end)

    def call_together(self, *calls: Call) -> list[Outcome]:
        """Call functions that wait for each other, all at once; if one fails, all fail with it.

        Raises:
            TimeIsOverError: there is no time left.
        """
        return call_in_processes(calls, at_once=len(calls), end=self._end, is_group=True)

    def train(self, variant: Variant, place: Place | None = None) -> Recorded:
        """Train once, from the start; see `train_all`."""
        return self.train_all([variant], [place])[0]

    def train_all(
        self, variants: Sequence[Variant], keep: Sequence[Place | None] | None = None
    ) -> list[Recorded]:
        """Train variants from the start, some at once; return what they computed.

        Args:
            variants: of the run.
            keep: a tensor of each.

        Raises:
            RunFailedError: one failed.
            TimeIsOverError: there is no time left.
        """
        keep = keep or [None] * len(variants)
        calls = [self.make_call(one, place) for one, place in zip(variants, keep, strict=True)]
        return [
            get_value(outcome, variant.name)
            for outcome, variant in zip(self.call(*calls), variants, strict=True)
        ]

    def make_call(
        self, variant: Variant, place: Place | None = None, *, run: Path | None = None
    ) -> Call:
        """Return what trains a variant in a new process.

        Args:
            variant: of the run.
            place: of a tensor to keep.
            run: folder of the run, which is resumed if it has one; None is a new one.
        """
        folder = self.make_folder()
        run = run or folder / "run"
        arguments = (self.program, self.facts.options, variant, run, place)
        method: Method = "spawn" if variant.is_new_interpreter else "fork"
        return Call(train, folder, arguments, method)

    def explain_why_not_pickled(self) -> str:
        """Return why the program cannot be sent to a new interpreter; "" if it can."""
        try:
            ForkingPickler.dumps(self.program)
        except Exception as error:  # any object of the user may raise any error
            return f"{type(error).__name__}: {error}"
        return ""

    def explain(
        self, difference: Difference, variant: Variant, select: _Select = lambda record: record
    ) -> Finding:
        """Train the real run and a variant again, and find the module or line that differs.

        Args:
            difference: of both.
            variant: that differs.
            select: what of the records is compared.
        """
        place = difference.place
        base, other = self.train_all([Variant("no change"), variant], [place, place])
        again = compare_records(select(base.record), select(other.record))
        if again is not None and again.place == place:
            difference = again
        return make_finding(difference, base, other)

    def compare(self, variant: Variant, select: _Select = lambda record: record) -> Finding | None:
        """Train a variant; return what differs from the real run, None if nothing does.

        Raises:
            RunFailedError: the variant failed, which the real run did not.
            TimeIsOverError: there is no time left.
        """
        found = compare_records(select(self.base.record), select(self.train(variant).record))
        return None if found is None else self.explain(found, variant, select)


def make_finding(difference: Difference, first: Recorded, second: Recorded) -> Finding:
    """Return a difference with the module or line that computed the value."""
    kind = difference.place.kind
    source = ""
    if kind in ("outputs", "loss", "gradients"):
        source = find_module(first.calls, second.calls)
    return Finding(difference, source or first.sources.get(kind, ""))


def get_value(outcome: Outcome, name: str) -> Any:
    """Return what a process returned.

    Raises:
        RunFailedError: it returned nothing.
    """
    if outcome.error or outcome.signal:
        raise RunFailedError(f"The run with {name} failed. {_explain(outcome)}", outcome.kind)
    return outcome.value


def _explain(outcome: Outcome) -> str:
    return outcome.error or f"Signal {outcome.signal} killed its process."


def start_at(record: RunRecord, first: int) -> RunRecord:
    """Return what a run that resumed after a step would record: its state, and the steps after.

    The rest of a checkpoint is compared from the next step on: an evaluation changes it after the
    record of this step.
    """
    steps = [step for step in record.steps if step.step >= first]
    if steps:
        number, values = steps[0]
        state = {kind: named for kind, named in values.items() if kind in _OF_STATE}
        steps[0] = StepRecord(number, state)
    return RunRecord(steps, record.place, record.kept)


def drop_names(record: RunRecord, *names: str) -> RunRecord:
    """Return a record without the values of the rest of a checkpoint whose names start so."""
    return filter_record(
        record, lambda kind, name: not (kind == KINDS[-1] and name.startswith(names))
    )


def filter_record(record: RunRecord, is_kept: Callable[[str, str], bool]) -> RunRecord:
    """Return a record with the values that a function of kind and name keeps."""
    steps = [
        StepRecord(
            step,
            {
                kind: {name: digest for name, digest in named.items() if is_kept(kind, name)}
                for kind, named in values.items()
            },
        )
        for step, values in record.steps
    ]
    return RunRecord(steps, record.place, record.kept)
