"""Compare suggested learning rates with the best of a grid of full trainings.

    python -m benchmarks.lr_find [--grid FILE] [--held-out] [--seeds N] [--steps N] [TASK ...]

Each task of `benchmarks/lr_tasks.py` and `lr_other_tasks.py`, and of `lr_held_out.py` beside them,
is trained at 11 rates with 3 seeds, by its own options. The best rate has the lowest mean of the
final validation loss; a run that diverged has an infinite loss. A rate is good if its mean is
within one standard error, or 2%, of the lowest. The file keeps the grid, which takes about 15
minutes of one CPU core for 16 tasks; the rest takes a few.

Then `surestep.find_lr` suggests a rate, with another seed. Its rule for the range test alone and
those of other libraries suggest rates from the curve. Seeds do not depend on the machine, but the
last digits do.
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import surestep
from benchmarks.lr_held_out import HELD_OUT
from benchmarks.lr_other_tasks import OTHER
from benchmarks.lr_rules import RULES
from benchmarks.lr_tasks import FIRST, LrTask
from surestep.errors import NonFiniteError

DEVELOPED_ON = {**FIRST, **OTHER}
TASKS = {**DEVELOPED_ON, **HELD_OUT}
RATES, SEEDS = 11, 3  # of the grid
FIRST_SEED = 100  # of the range tests
TOLERANCE = 0.02  # of the lowest loss


@dataclass(frozen=True)
class Grid:
    """The final validation loss of each rate and seed."""

    rates: list[float]
    losses: list[list[float]]

    @property
    def best(self) -> float:
        """The rate with the lowest mean loss."""
        return self.rates[min(range(len(self.rates)), key=self._mean)]

    def good(self) -> list[float]:
        """Return the rates whose mean loss is that of the best, within the noise."""
        best = self.rates.index(self.best)
        error = statistics.stdev(self.losses[best]) / math.sqrt(len(self.losses[best]))
        highest = self._mean(best) + max(error, TOLERANCE * abs(self._mean(best)))
        return [rate for at, rate in enumerate(self.rates) if self._mean(at) <= highest]

    def _mean(self, at: int) -> float:
        return statistics.fmean(self.losses[at])


@dataclass(frozen=True)
class Suggestion:
    """A rate that a rule suggests for a task; None if it suggests none."""

    task: str
    rate: float | None
    grid: Grid

    def factor(self, rates: Sequence[float]) -> float:
        """Return by which factor it is off the nearest of these rates."""
        if self.rate is None:
            return math.inf
        return min(math.exp(abs(math.log(self.rate / rate))) for rate in rates)


def configure(task: LrTask, seed: int, **optim: Any) -> surestep.Config:
    quiet = surestep.Logging(progress="quiet", every="1000 steps")
    options = {**task.config, "optim": {**task.config["optim"], **optim}}
    return surestep.Config(**options, seed=seed, logging=quiet)


def train(task: LrTask, lr: float, seed: int) -> float:
    """Train to the end; return the validation loss, which is infinite if the run diverged."""
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            surestep.prepare(
                task.make(), configure(task, seed, lr=lr), run=Path(folder) / "run"
            ) as session,
        ):
            for _ in session.steps():
                pass
            loss = float(session.evaluate("val")["val/loss"])
    except NonFiniteError:
        return math.inf
    return loss if math.isfinite(loss) else math.inf


def measure_grid(task: LrTask) -> Grid:
    """Train a task at each rate with each seed."""
    first, last = task.rates
    rates = [first * (last / first) ** (at / (RATES - 1)) for at in range(RATES)]
    return Grid(rates, [[train(task, rate, seed) for seed in range(SEEDS)] for rate in rates])


def load_grids(file: Path, names: Iterable[str]) -> dict[str, Grid]:
    """Return the grid of each task; measure those that the file lacks, and add them to it."""
    known = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        if name not in known:
            grid = measure_grid(TASKS[name])
            known[name] = {"rates": grid.rates, "losses": grid.losses}
            file.write_text(json.dumps(known))
    return {name: Grid(**known[name]) for name in names}


def suggest(
    name: str, grid: Grid, **options: Any
) -> tuple[surestep.LrRangeTest, dict[str, list[Suggestion]]]:
    """Return what surestep finds for a task, and what each rule suggests for its curves."""
    config = configure(TASKS[name], FIRST_SEED)
    found = surestep.find_lr(TASKS[name].make(), config, **options)
    rates = {
        "surestep": [found.lr],
        "surestep, range test alone": found.by_seed,
        **{
            rule: [suggest_rate(curve.rates, curve.losses) for curve in found.curves]
            for rule, suggest_rate in RULES.items()
        },
    }
    return found, {
        rule: [Suggestion(name, rate, grid) for rate in of_rule] for rule, of_rule in rates.items()
    }


def describe_rule(rule: str, suggestions: Sequence[Suggestion]) -> str:
    """Return a row of the table of the rules."""
    good = [one.factor(one.grid.good()) for one in suggestions]
    strict = [one.factor([one.grid.best]) for one in suggestions]
    counts = [sum(factor <= 3 for factor in good), sum(factor <= 3 for factor in strict)]
    counts.append(sum(factor <= 10 for factor in strict))
    cells = [f"{count}/{len(suggestions)}" for count in counts]
    factors = [f"{statistics.median(strict):.2g}", f"{max(strict):.2g}"]
    return f"| {rule} | {' | '.join(cells + factors)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=Path, default=Path("lr_grid.json"))
    parser.add_argument("--held-out", action="store_true", help="the tasks that are held out, too")
    for option in ("--seeds", "--steps"):
        parser.add_argument(option, type=int, help="of the range tests")
    parser.add_argument("tasks", nargs="*", help="which of them; all if there is none")
    given = parser.parse_args()
    if unknown := set(given.tasks) - set(TASKS):
        parser.error(f"{', '.join(unknown)} is not one of the tasks: {', '.join(TASKS)}")
    options = {name: vars(given)[name] for name in ("seeds", "steps") if vars(given)[name]}
    names = given.tasks or list(TASKS if given.held_out else DEVELOPED_ON)
    grids = load_grids(given.grid, names)
    print("| task | best | good | suggested | range test alone | off the best | off the good |")
    print("|---|---|---|---|---|---|---|")
    of_rules: dict[bool, dict[str, list[Suggestion]]] = {False: {}, True: {}}
    for name in names:
        grid, is_held_out = grids[name], name in HELD_OUT
        found, suggestions = suggest(name, grid, **options)
        for rule, more in suggestions.items():
            of_rules[is_held_out].setdefault(rule, []).extend(more)
        ours = suggestions["surestep"][0]
        good = grid.good()
        alone = " and ".join("none" if lr is None else f"{lr:.2g}" for lr in found.by_seed)
        print(
            f"| {name}{' (held out)' if is_held_out else ''} | {grid.best:.2g} "
            f"| {min(good):.2g} to {max(good):.2g} | {found.lr or math.nan:.2g} "
            f"| {alone} | {ours.factor([grid.best]):.1f} "
            f"| {ours.factor(good):.1f} |",
            flush=True,
        )
    for is_held_out, rules in of_rules.items():
        if rules:
            print(f"\n{'Held out' if is_held_out else 'Developed on'}:\n")
            print("| rule | within 3x of a good one | within 3x of the best | within 10x |", end="")
            print(" median factor | worst factor |\n|---|---|---|---|---|---|")
            for rule, of_rule in rules.items():
                print(describe_rule(rule, of_rule))


if __name__ == "__main__":
    main()
