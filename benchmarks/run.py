"""Time every contestant on every task and write `docs/benchmarks.md`.

python -m benchmarks.run                                    # all of it, about an hour
python -m benchmarks.run --rounds 3 --tasks mlp --only fast,surestep    # a look; writes nothing

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
from benchmarks.worker import Answer, Order, measure

ROUNDS = 5  # fewer are a look: the page is not written
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def check(task: str, rounds: Rounds) -> None:
    """Stop unless every contestant did the same work in every round."""
    usual, tolerance = rounds["plain"][0].final_loss, TASKS[task]().loss_tolerance
    for name, answers in rounds.items():
        for answer in answers:
            if answer.updates != answer.total or answer.reads < answer.total // READ_EVERY:
                raise SystemExit(
                    f"{name} on {task}: asked for {answer.total} steps and a loss every "
                    f"{READ_EVERY}; it took {answer.updates} and read {answer.reads}."
                )
            if abs(answer.final_loss / usual - 1.0) > tolerance:
                raise SystemExit(
                    f"{name} on {task}: ended with loss {answer.final_loss:.4f} where the plain "
                    f"loop ends with {usual:.4f}; they did not do the same work."
                )


def run_rounds(task: str, contestants: Sequence[Contestant], rounds: int) -> Rounds:
    """Let the contestants take turns, in a new order each round."""
    steps = TASKS[task]().steps
    order = random.Random(0)
    answers: dict[str, list[Answer]] = {each.name: [] for each in contestants}
    for number in range(rounds):
        for each in order.sample(contestants, k=len(contestants)):
            answers[each.name].append(measure(each, Order(task, steps)))
        newest = "  ".join(f"{name} {answers[name][-1].step_us:,.0f}" for name in answers)
        print(f"{task} {number + 1}/{rounds}  {newest}", file=sys.stderr, flush=True)
    check(task, answers)
    return answers


def make_tables(tasks: Sequence[str], asked: Sequence[Contestant], rounds: int) -> list[str]:
    """Run every task with the contestants that are installed, and write its table."""
    names = [contestant.name for contestant in asked]
    installed = [contestant for contestant in asked if contestant.version]
    tables = []
    for task in tasks:
        answers = run_rounds(task, installed, rounds)
        tables.append(table(TASKS[task]().title, answers, names))
        print(tables[-1], flush=True)
    return tables


def pick(asked: str, known: Sequence[str], what: str) -> list[str]:
    """Split comma-separated names; exit on an unknown name."""
    names = asked.split(",") if asked else list(known)
    for name in names:
        if name not in known:
            raise SystemExit(f"There is no {what} {name!r}; there are {', '.join(known)}.")
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
