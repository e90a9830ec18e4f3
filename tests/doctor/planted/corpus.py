"""The scripts with a planted mistake."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tests.doctor.planted.planters import PLANTERS
from tests.doctor.planted.planters.base import Planter
from tests.doctor.planted.scripts import load_base, write_base
from tests.doctor.planted.vary import vary
from tests.doctor.planted.view import View


@dataclass(frozen=True)
class Mutant:
    """A script with one planted mistake.

    Attributes:
        base: the correct script.
        planter: which planted it.
        position: the number of the position in the script.
        seed: of the variations; 0 for none.
        files: its source.
    """

    base: str
    planter: Planter
    position: int
    seed: int
    files: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.base}-{self.planter.rule}-{self.planter.name}-{self.position}-{self.seed}"

    @property
    def can_run(self) -> bool:
        return self.planter.runs and load_base(self.base).can_run


def plant_all(
    bases: Sequence[str], rules: Sequence[str] = ("SS",), seeds: int = 1
) -> Iterator[Mutant]:
    """Yield each base with each mistake, at each position that it fits.

    Args:
        bases: names of correct scripts.
        rules: starts of the codes of rules.
        seeds: variations of each; the first one has only the mistake.
    """
    for base in bases:
        for planter in PLANTERS:
            if planter.rule.startswith(tuple(rules)) and planter.fits(base):
                yield from plant(base, planter, seeds)


def plant_few(
    bases: Sequence[str], rules: Sequence[str] = ("SS",), most: int = 1
) -> Iterator[Mutant]:
    """Yield each mistake at the first position that it fits, in a few of the bases.

    Args:
        bases: names of correct scripts; each mistake begins with another one.
        rules: starts of the codes of rules.
        most: number of bases for each mistake.
    """
    for number, planter in enumerate(PLANTERS):
        start = number % len(bases)
        mutants = (
            mutant
            for base in (*bases[start:], *bases[:start])
            if planter.rule.startswith(tuple(rules)) and planter.fits(base)
            for mutant in islice(plant(base, planter, 1), 1)
        )
        yield from islice(mutants, most)


def plant(base: str, planter: Planter, seeds: int) -> Iterator[Mutant]:
    count = sum(1 for _ in planter.plant(View(load_base(base))))
    for position in range(count):
        for seed in range(seeds):
            script = load_base(base).copy()
            edits = list(planter.plant(View(script)))
            edits[position]()
            if seed == 0 and script.write() == write_base(base):
                raise ValueError(f"{planter.name} changes nothing in {base}, position {position}.")
            if seed:
                vary(script, random.Random(f"{base} {planter.name} {position} {seed}"))
            yield Mutant(base, planter, position, seed, script.write())
