"""Kill data workers at random moments while one process trains.

Each time the run names the worker, saves, and ends its other workers; the next one resumes.
"""

import mmap
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from surestep.base.errors import WorkerError
from surestep.base.processes import list_children
from surestep.engine.data.workers import Loader
from tests.torture.cases import Case
from tests.torture.forked import Child
from tests.torture.outcome import differences
from tests.torture.trial import Part

CASES = (
    Case(workers="2", augmentation="numpy", data="map", average=True),
    Case(workers="2", augmentation="random", data="stream", accumulation=True),
)


class Lost(Part):
    """A part of a run that exits with 3 if a worker died and was named as the cause."""

    def _train(self, shared: mmap.mmap, pipe: int) -> None:
        # A run that waits so long for workers that its dead worker blocks does not end in time.
        Loader.close.__defaults__ = (3600.0,)
        try:
            super()._train(shared, pipe)
        except WorkerError as error:
            code = 3 if "SIGKILL" in str(error) and "Saved as" in str(error.__notes__) else 4
            os._exit(code)


def kill_workers(folder: Path, wanted: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Kill this many workers; compare each run with an undisturbed one."""
    draw, kills, runs, wrong = random.Random(seed), 0, 0, list[str]()
    expected = [Part(case, folder / f"whole-{n}").outcome() for n, case in enumerate(CASES)]
    slowest = 0.0
    while kills < wanted and not wrong:
        case = CASES[runs % len(CASES)]
        part = Lost(case, folder / f"run-{runs}")
        ended = False
        while not ended and not wrong:
            took, problem = _kill_one(part, draw)
            ended, kills = part.is_finished(), kills + (took is not None)
            slowest = max(slowest, took or 0.0)
            wrong += [f"{part.folder.name}: {problem}"] if problem else []
        if not wrong:
            wrong += differences(expected[runs % len(CASES)], part.came_to())
            shutil.rmtree(part.folder)
        runs += 1
        if runs % 10 == 0:
            print(f"  {kills} of {wanted} workers killed, {runs} runs", flush=True)
    return {"kills": kills, "runs": runs, "slowest end, s": round(slowest, 2)}, wrong


def _kill_one(part: Part, draw: random.Random) -> tuple[float | None, str]:
    """Train until a random moment, kill a worker, and wait; return the duration."""
    child = part.start()
    took, killed = None, False
    try:
        if child.wait_for(f"step {draw.randint(1, 6)}"):
            time.sleep(draw.uniform(0, 0.02))
            workers = list_children(child.pid)
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(workers), signal.SIGKILL)
                    killed = True
        begun = time.monotonic()
        code = child.wait()
        took = time.monotonic() - begun
        left = _left(child)
    finally:
        child.close()
    if code == 0:  # the worker had loaded all its samples
        return None, ""
    if not killed or code != 3:
        return took, f"ended with {code}"
    return took, f"{left} outlived their run" if left else ""


def _left(child: Child, within_s: float = 20.0) -> list[int]:
    """Return the processes of the child's group that are alive after some seconds."""
    end = time.monotonic() + within_s
    while True:
        left = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
                if int(group) == child.pid and state != "Z":
                    left.append(int(path.parent.name))
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)
