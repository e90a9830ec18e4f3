"""Print what each folder of tests finds: `python -m tests.mutants.report SECONDS MUTANTS...`."""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read(path: str) -> list[Any]:
    """Return the lines of a JSON Lines file."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def group_of(test: str) -> str:
    """Name the folder of a test below `tests/`, or its file there."""
    return test.split("::")[0].split("/")[1]


def rows(seconds: Iterable[Any], runs: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return for each group its tests, their seconds, and how many mutants it finds."""
    tests, spent = Counter[str](), Counter[str]()
    for test, processor_s, _ in seconds:
        tests[group_of(test)] += 1
        spent[group_of(test)] += processor_s
    finders: dict[int, set[str]] = defaultdict(set)
    tried: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        tried[group_of(run["file"])].add(run["mutant"])
        if run["found"]:
            finders[run["mutant"]].add(group_of(run["file"]))
    found = Counter(group for groups in finders.values() for group in groups)
    alone: dict[str, list[int]] = defaultdict(list)
    for mutant, groups in sorted(finders.items()):
        if len(groups) == 1:
            alone[next(iter(groups))].append(mutant)
    return [
        (group, tests[group], round(spent[group]), len(tried[group]), found[group], alone[group])
        for group in sorted(spent, key=lambda group: -spent[group])
    ]


def main(seconds: str, *mutants: str) -> None:
    runs = [run for path in mutants for run in read(path)]
    print("| group | tests | s | mutants tried | found | found by no other |")
    print("|---|---|---|---|---|---|")
    for row in rows(read(seconds), runs):
        print("|", " | ".join(map(str, row)), "|")
    found = {run["mutant"] for run in runs if run["found"]}
    print("not found:", sorted({run["mutant"] for run in runs} - found))


if __name__ == "__main__":
    main(*sys.argv[1:])
