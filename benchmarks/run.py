"""Time every contestant on every task and write `docs/benchmarks.md`.

python -m benchmarks.run                                    # all tasks, about an hour
python -m benchmarks.run --rounds 3 --tasks mlp --only fast,surestep    # a preview; writes nothing

A round is one fresh process for each contestant.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.report import Rounds, page, table
from benchmarks.rules import READ_EVERY
from benchmarks.tasks import TASKS
from benchmarks.worker import Job, Measurement, measure

ROUNDS = 5  # with fewer, the page is not written
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def check(task: str, rounds: Rounds) -> None:
    """Exit unless every contestant did the same work in every round."""
    plain_loss, tolerance = rounds["plain"][0].final_loss, TASKS[task]().loss_tolerance
    for name, measurements in rounds.items():
        for measurement in measurements:
            if (
                measurement.updates != measurement.total
                or measurement.reads < measurement.total // READ_EVERY
            ):
                raise SystemExit(
                    f"{name} on {task}: expected {measurement.total} steps and a loss every "
                    f"{READ_EVERY}; it took {measurement.updates} and read {measurement.reads}."
                )
            if abs(measurement.final_loss / plain_loss - 1.0) > tolerance:
                raise SystemExit(
                    f"{name} on {task}: the final loss is {measurement.final_loss:.4f}, and "
                    f"{plain_loss:.4f} for the plain loop; they did not do the same work."
                )


def run_rounds(task: str, contestants: Sequence[Contestant], rounds: int) -> Rounds:
    """Run all contestants once a round, in a random order."""
    steps = TASKS[task]().steps
    order = random.Random(0)
    measurements: dict[str, list[Measurement]] = {contestant.name: [] for contestant in contestants}
    for number in range(rounds):
        for contestant in order.sample(contestants, len(contestants)):
            measurements[contestant.name].append(measure(contestant, Job(task, steps)))
        newest = "  ".join(f"{name} {measurements[name][-1].step_us:,.0f}" for name in measurements)
        print(f"{task} {number + 1}/{rounds}  {newest}", file=sys.stderr, flush=True)
    check(task, measurements)
    return measurements


def make_tables(tasks: Sequence[str], contestants: Sequence[Contestant], rounds: int) -> list[str]:
    """Run every task with the contestants that are installed, and write its table."""
    names = [contestant.name for contestant in contestants]
    installed = [contestant for contestant in contestants if contestant.version]
    tables = []
    for task in tasks:
        measurements = run_rounds(task, installed, rounds)
        tables.append(table(TASKS[task]().title, measurements, names))
        print(tables[-1], flush=True)
    return tables


def pick(text: str, allowed: Sequence[str], what: str) -> list[str]:
    """Split comma-separated names; exit on an unknown name."""
    names = text.split(",") if text else list(allowed)
    for name in names:
        if name not in allowed:
            raise SystemExit(f"There is no {what} {name!r}. Choose from {', '.join(allowed)}.")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tasks", default="", help=f"of {','.join(TASKS)}; default: all")
    parser.add_argument("--only", default="", help="contestants; the plain loop always runs")
    arguments = parser.parse_args()
    tasks = pick(arguments.tasks, list(TASKS), "task")
    names = pick(arguments.only, [c.name for c in CONTESTANTS], "contestant")
    asked = [c for c in CONTESTANTS if c.name in {"plain", *names}]
    tables = make_tables(tasks, asked, arguments.rounds)
    is_whole = len(tasks) == len(TASKS) and len(asked) == len(CONTESTANTS)
    if is_whole and arguments.rounds >= ROUNDS:
        command = f"python -m benchmarks.run --rounds {arguments.rounds}"
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(tables, arguments.rounds, command))
        print(f"Wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
