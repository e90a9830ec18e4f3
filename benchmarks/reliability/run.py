"""Kill runs of each library in the middle of a save, resume them, and count the outcomes.

    python -m benchmarks.reliability.run --kills 60

Each run is killed (-9) once, at a random moment of a random save, and started again as the
library's documentation describes. All processes of a library fork from one that has imported it.
"""

import argparse
import gc
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, get_args

from tests.torture.forked import Child

from benchmarks.reliability.job import SAVE_EVERY, STEPS, Job, Setting
from benchmarks.reliability.reporter import Reporter

CONTESTANTS = ("surestep", "lightning", "accelerate", "hf_trainer")
SETTINGS: tuple[Setting, ...] = get_args(Setting)
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Log:
    """What a run reported: digests by step, the resumed step, the duration of its saves."""

    steps: dict[int, str] = field(default_factory=dict)
    loaded: list[tuple[int, str]] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Log":
        """Read a log; its last line may be incomplete."""
        log = cls()
        text = path.read_text(encoding="utf-8")
        for line in text[: text.rfind("\n") + 1].splitlines():
            kind, number, value = line.split()
            if kind == "saved":
                log.saves.append(float(value))
            elif kind == "step":
                log.steps[int(number)] = value
            else:
                log.loaded.append((int(number), value))
        return log


def start(contestant: str, job: Job, log: Path) -> Child:
    """Fork a process that resumes from the folder and trains."""
    return Child(partial(_train, contestant, job, log))


def _train(contestant: str, job: Job, log: Path, shared: mmap.mmap, pipe: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    module = import_module(f"benchmarks.reliability.{contestant}_run")
    with log.open("w", encoding="utf-8") as file:
        module.train(job, Reporter(shared, pipe, file))


def measure(contestant: str, setting: Setting, kills: int, folder: Path) -> dict[str, Any]:
    """Kill `kills` runs within a save; return how often each outcome was."""
    uninterrupted = Job(folder / "uninterrupted", setting)
    child = start(contestant, uninterrupted, folder / "uninterrupted.log")
    if child.wait() != 0:
        raise SystemExit(f"{contestant}: the run that was not killed ended with {child.code}")
    child.close()
    reference = Log.read(folder / "uninterrupted.log")
    save_s, draw = median(reference.saves), random.Random(f"{contestant} {setting}")
    outcomes: Counter[str] = Counter()
    while outcomes["killed inside a save"] < kills:
        run = folder / "killed"
        shutil.rmtree(run, ignore_errors=True)
        if _kill(contestant, Job(run, setting), draw, save_s):
            outcomes["killed inside a save"] += 1
            outcomes[_resume(contestant, Job(run, setting), reference)] += 1
    return {"contestant": contestant, "setting": setting, "save_s": save_s, **outcomes}


def _kill(contestant: str, job: Job, draw: random.Random, save_s: float) -> bool:
    """Kill a run in a save after its first; return whether the save was in progress."""
    child = start(contestant, job, job.folder.with_name("killed.log"))
    try:
        if child.wait_for(f"save {draw.randint(2, STEPS // SAVE_EVERY - 1)}"):
            time.sleep(draw.uniform(0, save_s))
        child.kill()
        return child.code == -9 and child.shared[0] == 1
    finally:
        child.close()


def _resume(contestant: str, job: Job, reference: Log) -> str:
    """Start a run again, and return the outcome."""
    path = job.folder.with_name("again.log")
    child = start(contestant, job, path)
    try:
        failed = child.wait() != 0
    finally:
        child.close()
    log = Log.read(path)
    if failed or not log.loaded:
        return "failed"
    step, digest = log.loaded[0]
    if step == 0:
        return "restarted at step 0"
    if digest != reference.steps[step]:
        return "resumed from a corrupt or incomplete checkpoint"
    exact = all(reference.steps[step] == digest for step, digest in log.steps.items())
    return "bitwise equal" if exact and STEPS in log.steps else "resumed, not bitwise equal"


def measure_settings(contestant: str, kills: int) -> None:
    """Measure a library in this process, which imports it and then only forks."""
    import torch

    torch.set_num_threads(1)
    import_module(f"benchmarks.reliability.{contestant}_run")
    gc.collect()
    gc.freeze()
    for setting in SETTINGS:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(contestant, setting, kills, Path(folder))), flush=True)


def main() -> None:
    """Measure every library in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestants", nargs="*", default=CONTESTANTS, metavar="CONTESTANT")
    parser.add_argument("--kills", type=int, default=60, help="kills within a save, each setting")
    parser.add_argument("--here", action="store_true", help="measure one in this very process")
    arguments = parser.parse_args()
    if arguments.here:
        return measure_settings(arguments.contestants[0], arguments.kills)
    for contestant in arguments.contestants:
        command = [sys.executable, "-m", "benchmarks.reliability.run", contestant, "--here"]
        environment = {**os.environ, **ONE_THREAD, "TOKENIZERS_PARALLELISM": "false"}
        subprocess.run(
            [*command, "--kills", str(arguments.kills)], cwd=REPOSITORY, env=environment, check=True
        )
    return None


if __name__ == "__main__":
    main()
