"""Plant mistakes in correct training scripts, and count those that the doctor finds.

`python -m tests.doctor.planted --rules SS1 --bases gan --write` writes docs/rules/recall.md.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bases", nargs="*", default=list_bases(), choices=list_bases())
    parser.add_argument("--seeds", type=int, default=1, help="variations of each script")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--correct", action="store_true", help="only the scripts without a mistake")
    given = parser.parse_args()
    alarms = find_false_alarms(given.bases, given.seeds, given.processes)
    print("\n".join(alarms))
    count = len(given.bases) * (given.seeds + 1)
    print(f"{len(alarms)} false alarms in {count} correct scripts", file=sys.stderr)
    return int(bool(alarms))


if __name__ == "__main__":
    raise SystemExit(main())
