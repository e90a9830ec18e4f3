"""Run the long version: every case, many kills, damage in every file, full disks.

    python -m tests.torture [--kills 500] [--cases 10000] [--flips 40] [--disks 40] [--calls]
                            [--restarts 20] [--workers 200] [--groups 100]

Only the parts with an argument run; without arguments all run. The exit code is 1 if anything is
lost. TMPDIR=/dev/shm makes it faster: a kill, unlike a loss of power, needs no real disk.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.torture.warm import ONE_THREAD, warm_up

Found = tuple[dict[str, Any], list[str]]  # numbers, and what is wrong


def cases(folder: Path, wanted: int, seed: int) -> Found:
    """Kill a run of every case, or of a random sample of them."""
    from tests.torture.cases import product
    from tests.torture.trial import trial

    chosen = list(product())
    if wanted < len(chosen):
        chosen = random.Random(seed).sample(chosen, wanted)
    phases, wrong, in_save, missed = Counter[str](), [], 0, 0
    for number, case in enumerate(chosen):
        with tempfile.TemporaryDirectory(dir=folder) as own:
            result = trial(case, Path(own), seed=seed + number)
        wrong += [f"{case}: {each}" for each in result.different]
        missed += not result.wanted
        phases.update(kill["phase"] for kill in result.kills)
        in_save += sum(kill["in_save"] for kill in result.kills)
        if number % 100 == 99:
            print(f"  {number + 1} of {len(chosen)} cases, {len(wrong)} wrong", flush=True)
    kills = sum(n for phase, n in phases.items() if not phase.startswith("none"))
    if in_save < 0.2 * kills:
        wrong.append(f"only {in_save} of {kills} kills hit a save")
    figures = {"cases": len(chosen), "kills": kills, "with a save in flight": in_save}
    return {**figures, "phase not hit": missed, **phases}, wrong


def kills(folder: Path, wanted: int, seed: int) -> Found:
    """Kill while a save is in progress."""
    from tests.torture.kills import kill_many

    count = vars(kill_many(folder, wanted, seed=seed))
    return count, count.pop("different")


def calls(folder: Path, _: int, seed: int) -> Found:
    """Kill a save at each of its calls, and within its files."""
    from tests.torture.saves import each_call, each_size

    killed = each_call(folder / "calls") + each_size(folder / "sizes", list(range(0, 6000, 250)))
    wrong = [str(each) for each in killed if each.damaged or each.different or not each.good]
    left = sum(bool(each.left) for each in killed)
    return {"kills": len(killed), "left half done": left, "good": len(killed) - len(wrong)}, wrong


def flips(folder: Path, wanted: int, seed: int) -> Found:
    """Damage every file of a checkpoint."""
    from tests.torture.corruption import damage_all

    return damage_all(folder, wanted, seed=seed)


def disks(folder: Path, wanted: int, seed: int) -> Found:
    """Run on disks that are too small."""
    from tests.torture.disks import fill, may_mount

    if not may_mount(folder / "mount"):
        return {}, ["A tmpfs cannot be mounted here: run it as root."]
    return fill(folder, [150 + 60 * number for number in range(wanted)])


def restarts(folder: Path, wanted: int, seed: int) -> Found:
    """Kill the processes of torchrun in this many attempts."""
    from tests.torture.restarts import restart

    return restart(folder, wanted, seed)


def groups(folder: Path, wanted: int, seed: int) -> Found:
    """Kill ranks, data workers, torchrun and whole groups."""
    from tests.torture.groups import kill_groups

    return kill_groups(folder, wanted, seed)


def workers(folder: Path, wanted: int, seed: int) -> Found:
    """Kill data workers of one process."""
    from tests.torture.workers import kill_workers

    return kill_workers(folder, wanted, seed)


PARTS: dict[str, tuple[Callable[[Path, int, int], Found], int]] = {
    "kills": (kills, 500),
    "calls": (calls, 1),
    "flips": (flips, 40),
    "disks": (disks, 40),
    "restarts": (restarts, 20),
    "workers": (workers, 200),
    "groups": (groups, 100),
    "cases": (cases, 10_000),
}


def main() -> int:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, (_, usual) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, nargs="?", const=usual, help=f"usual: {usual}")
    parser.add_argument("--seed", type=int, default=0, help="other moments, bits and cases")
    said = vars(parser.parse_args())
    seed = said.pop("seed")
    chosen = {name: n for name, n in said.items() if n is not None}
    chosen = chosen or {name: usual for name, (_, usual) in PARTS.items()}
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.environ.update(ONE_THREAD)  # libraries create their thread pools on import
        os.execv(sys.executable, [sys.executable, "-m", "tests.torture", *sys.argv[1:]])
    warm_up()
    wrong = []
    for name, wanted in chosen.items():
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            figures, found = PARTS[name][0](Path(folder), wanted, seed)
        shown = ", ".join(f"{what}: {n}" for what, n in figures.items())
        print(f"{name} ({time.monotonic() - start:.0f} s): {shown}; wrong: {len(found)}")
        print("".join(f"  {each}\n" for each in found[:20]), end="", flush=True)
        wrong += found
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
