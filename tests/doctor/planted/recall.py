"""Which planted mistakes are found by `surestep check`, and which by `surestep watch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from surestep.doctor.rule import load_rules
from tests.doctor.planted.corpus import Mutant
from tests.doctor.planted.run import Result, check, watch_all


@cache
def list_watching() -> frozenset[str]:
    """Return the codes of the rules with a run-time side."""
    return frozenset(rule.code for rule in load_rules() if rule.watcher is not None)


@dataclass
class Outcome:
    """What the doctor found in a script with a planted mistake.

    Attributes:
        mutant: the script.
        checked: by `surestep check`.
        watched: by `surestep watch`; None if the script was not run.
    """

    mutant: Mutant
    checked: Result
    watched: Result | None

    @property
    def rule(self) -> str:
        return self.mutant.planter.rule

    @property
    def by_check(self) -> bool:
        return self.rule in self.checked.codes

    @property
    def by_watch(self) -> bool:
        return self.watched is not None and self.rule in self.watched.codes

    @property
    def is_for_watch(self) -> bool:
        """Whether a run must show it: it is marked R, and the rule has a run-time side."""
        is_shown = self.mutant.planter.is_shown_by_run(self.mutant.base)
        return is_shown and self.rule in list_watching() and self.mutant.can_run

    @property
    def others(self) -> set[str]:
        """Errors and warnings of other rules."""
        found = self.checked.alarms | (self.watched.alarms if self.watched else set())
        return found - {self.rule}


@dataclass
class Count:
    """How many mistakes were planted and found.

    Attributes:
        planted: mistakes.
        check: found by check.
        watch: found by watch.
        either: found by one of them.
        for_watch: planted mistakes that watch must find.
        found_for_watch: those that it found.
    """

    planted: int = 0
    check: int = 0
    watch: int = 0
    either: int = 0
    for_watch: int = 0
    found_for_watch: int = 0
    missed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.planted += 1
        self.check += outcome.by_check
        self.watch += outcome.by_watch
        is_found = outcome.by_check or outcome.by_watch
        self.either += is_found
        self.for_watch += outcome.is_for_watch
        self.found_for_watch += outcome.is_for_watch and outcome.by_watch
        if not is_found or (outcome.is_for_watch and not outcome.by_watch):
            self.missed.append(outcome)


def examine(mutants: Sequence[Mutant], processes: int, *, runs: bool = True) -> list[Outcome]:
    """Check each script, and watch those that a rule with a run-time side has to find."""
    watching = list_watching()
    ran = [m for m in mutants if runs and m.can_run and m.planter.rule in watching]
    results = dict(
        zip([m.name for m in ran], watch_all([m.files for m in ran], processes), strict=True)
    )
    return [Outcome(m, check(m.files), results.get(m.name)) for m in mutants]


def count(outcomes: Sequence[Outcome]) -> Count:
    total = Count()
    for outcome in outcomes:
        total.add(outcome)
    return total
