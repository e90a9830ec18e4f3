"""Draw or read mutants, run the tests that execute their lines, and print which files find them."""

import argparse
import json
import sqlite3
from collections import defaultdict
from pathlib import Path

import pytest

from tests.mutants.draw import draw, read_planted
from tests.mutants.run import Loop

ROOT = Path(__file__).parents[2]
HEART = ("tests/laws/", "tests/engine/step/", "tests/record/checkpoint/", "tests/trainer/")
Executed = dict[Path, dict[int, set[str]]]


def executed_lines(database: Path) -> Executed:
    """Return the tests that execute each line of each file, as pytest-cov recorded them."""
    connection = sqlite3.connect(database)
    names = dict(connection.execute("select id, context from context"))
    paths = dict(connection.execute("select id, path from file"))
    found: Executed = defaultdict(lambda: defaultdict(set))
    for file, context, bits in connection.execute(
        "select file_id, context_id, numbits from line_bits"
    ):
        test = names[context].rsplit("|", 1)[0]
        if test:
            lines = found[Path(paths[file])]
            for place, byte in enumerate(bits):
                for bit in range(8):
                    if byte >> bit & 1:
                        lines[8 * place + bit].add(test)
    return found


def tests_by_file(
    tests: set[str], seconds: dict[str, float], file_s: float
) -> dict[str, list[str]]:
    """Return the cheapest tests of each file, up to `file_s` processor seconds, at least one."""
    chosen: dict[str, list[str]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)
    for test in sorted(tests, key=lambda test: (seconds.get(test, 0.0), test)):
        file = test.split("::")[0]
        spent[file] += seconds.get(test, 0.0)
        if spent[file] <= file_s or not chosen[file]:
            chosen[file].append(test)
    return dict(sorted(chosen.items()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("coverage", type=Path)
    parser.add_argument("seconds", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--planted", type=Path, help="a JSON file of mutants, instead of drawn ones"
    )
    parser.add_argument("--file-s", type=float, default=2.0, help="seconds of tests of one file")
    parser.add_argument("--enough", type=int, default=10, help="files that find a mutant")
    parser.add_argument("--files", type=int, help="try so many files of tests for each mutant")
    parser.add_argument("--shard", default="0/1", help="run each n-th mutant: 0/2 and 1/2")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.seconds.read_text().splitlines()]
    seconds = {test: spent for test, spent, *_ in lines}
    executed = executed_lines(options.coverage)
    heart = {
        path: frozenset(
            n for n, tests in by_line.items() if any(t.startswith(HEART) for t in tests)
        )
        for path, by_line in executed.items()
    }
    if options.planted:
        mutants = read_planted(options.planted, ROOT)
    else:
        mutants = draw(ROOT, heart, options.count, options.seed)
    own, of = map(int, options.shard.split("/"))
    covering = {
        number: tests_by_file(executed[ROOT / mutant.path][mutant.line], seconds, options.file_s)
        for number, mutant in enumerate(mutants)
    }
    for number, mutant in enumerate(mutants):
        print(f"{number}: {mutant.path}:{mutant.line}: {mutant.was} -> {mutant.now}")
    mine = [(number, mutant) for number, mutant in enumerate(mutants) if number % of == own]
    loop = Loop(mine, covering, ROOT, options.out, options.enough, options.files)
    pytest.main(["-q", "-m", "not slow", "-p", "no:cacheprovider", str(ROOT / "tests")], [loop])


if __name__ == "__main__":
    main()
