"""The time of a search compared with the same trainings, each started by itself.

`python -m benchmarks.search_overhead --trials 8 --epochs 60 --repeats 3` alternates between a
search of the recipe spiral and the same trainings by `surestep train`, one after the other. It
prints the ratio of their times, and of the processor times of all their processes.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

LR = [round(1e-3 * 1.3**index, 6) for index in range(40)]
RECIPE = "spiral"


def measure(commands: Sequence[Sequence[str]], folder: Path) -> tuple[float, float]:
    """Run commands one after the other; return their time, and their processor time."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    for words in commands:
        subprocess.run(
            [sys.executable, "-m", "surestep", *words],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - started, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    rates, ratios = LR[: given.trials], []
    fixed = ["--epochs", str(given.epochs), "--data.num-workers", "0"]
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "space.toml").write_text(f"optim.lr = {rates}\n")
            search = ["search", RECIPE, "--space", "space.toml", "--trials", str(given.trials)]
            search += ["--sampler", "grid", "--pruner", "none", "--threads", "1", *fixed]
            alone = [
                ["train", RECIPE, "--optim.lr", str(rate), "--run", f"run-{rate}", *fixed]
                for rate in rates
            ]
            searched, trained = measure([search], folder), measure(alone, folder)
        ratios.append([a / b for a, b in zip(searched, trained, strict=True)])
        print(
            f"search {searched[0]:.1f} s ({searched[1]:.1f} s of processors), trainings "
            f"{trained[0]:.1f} s ({trained[1]:.1f} s): ratio {ratios[-1][0]:.3f} "
            f"({ratios[-1][1]:.3f})",
            flush=True,
        )
    wall, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"median ratio of the time {wall:.3f}, of the processor time {cpu:.3f}")


if __name__ == "__main__":
    main()
