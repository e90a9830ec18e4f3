"""Plant mistakes in correct training scripts, and count those that the doctor finds.

`python -m tests.doctor.planted` prints the mistakes that were missed, and `--write` writes
docs/rules/recall.md. `--rules SS1` and `--bases gan vae` plant less.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.doctor.planted.corpus import plant_all, plant_few
from tests.doctor.planted.page import PAGE, render_page
from tests.doctor.planted.recall import Outcome, count, examine
from tests.doctor.planted.run import Result, check, watch_all
from tests.doctor.planted.scripts import list_bases, load_base, read_base
from tests.doctor.planted.vary import vary


def list_correct(bases: Sequence[str], seeds: int) -> dict[str, dict[str, str]]:
    """Return correct scripts: each as it was written, and in some other ways."""
    scripts = {}
    for base in bases:
        scripts[base] = read_base(base)
        for seed in range(seeds):
            script = load_base(base).copy()
            vary(script, random.Random(f"{base} {seed}"))
            scripts[f"{base} varied by {seed}"] = script.write()
    return scripts


def find_false_alarms(bases: Sequence[str], seeds: int, processes: int) -> list[str]:
    """Return a line for each error or warning about a correct script, and for each exception."""
    scripts = list_correct(bases, seeds)
    can_run = [name for name in scripts if load_base(name.partition(" ")[0]).can_run]
    results = [(name, "check", check(files)) for name, files in scripts.items()]
    watched = watch_all([scripts[name] for name in can_run], processes)
    results += zip(can_run, ["watch"] * len(can_run), watched, strict=True)
    return [line for name, by, result in results for line in describe(name, by, result)]


def describe(name: str, by: str, result: Result) -> list[str]:
    found = [f for f in result.found if f["severity"] in ("error", "warning")]
    lines = [f"{name}: {by}: {f['at']} {f['rule']} {f['message']}" for f in found]
    return lines + [f"{name}: {by}: {result.error}"] * bool(result.error)


def report(outcomes: Sequence[Outcome]) -> None:
    """Print what was missed, what else was found, and which scripts raised an exception."""
    for outcome in count(outcomes).missed:
        by_both = not (outcome.by_check or outcome.by_watch)
        print("missed" if by_both else "missed by watch", outcome.mutant.name)
    for outcome in outcomes:
        if outcome.others:
            results = [r for r in (outcome.checked, outcome.watched) if r]
            found = [f for r in results for f in r.found if f["rule"] in outcome.others]
            lines = {f"{f['rule']} {f['at']} {f['message']}" for f in found}
            print("also", outcome.mutant.name, *sorted(lines), sep="\n    ")
        if outcome.watched is not None and outcome.watched.error:
            print("raised", outcome.mutant.name, outcome.watched.error.strip()[-300:])


def parse_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bases", nargs="*", default=list_bases(), choices=list_bases())
    parser.add_argument("--rules", nargs="*", default=["SS"], help="starts of their codes")
    parser.add_argument("--seeds", type=int, default=1, help="variations of each script")
    parser.add_argument("--most", type=int, help="bases for each mistake, at one position of each")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--correct", action="store_true", help="only the scripts without a mistake")
    parser.add_argument("--no-runs", action="store_true", help="only check")
    parser.add_argument("--keep", type=Path, help="write the scripts to this folder")
    parser.add_argument("--least", type=float, default=0, help="share to find, else exit with 1")
    parser.add_argument("--least-of-watch", type=float, default=0, help="share for watch to find")
    parser.add_argument("--write", action="store_true", help="write docs/rules/recall.md")
    return parser.parse_args()


def main() -> int:
    given = parse_words()
    started = time.monotonic()
    if given.correct:
        alarms = find_false_alarms(given.bases, given.seeds, given.processes)
        print("\n".join(alarms))
        number = len(given.bases) * (given.seeds + 1)
        print(f"{len(alarms)} false alarms in {number} correct scripts", file=sys.stderr)
        return int(bool(alarms))
    mutants = list(
        plant_few(given.bases, given.rules, given.most)
        if given.most
        else plant_all(given.bases, given.rules, given.seeds)
    )
    for mutant in mutants if given.keep else []:
        given.keep.mkdir(exist_ok=True)
        text = "\n# ---\n".join(mutant.files.values())
        (given.keep / f"{mutant.name}.py").write_text(text, encoding="utf-8")
    outcomes = examine(mutants, given.processes, runs=not given.no_runs)
    report(outcomes)
    total = count(outcomes)
    print(
        f"{total.planted} planted, {total.either} found: {total.check} by check and {total.watch} "
        f"by watch, {total.found_for_watch} of {total.for_watch} that show in a run; "
        f"{time.monotonic() - started:.0f} s",
        file=sys.stderr,
    )
    if given.write:
        PAGE.write_text(render_page(outcomes, given.bases), encoding="utf-8")
    is_enough = total.either >= given.least * total.planted
    return int(
        not (is_enough and total.found_for_watch >= given.least_of_watch * total.for_watch)
        or any(outcome.watched is not None and outcome.watched.error for outcome in outcomes)
    )


if __name__ == "__main__":
    raise SystemExit(main())
