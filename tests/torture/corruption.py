"""Damage every file of the newest checkpoint: single bits, truncation, deletion."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.torture.cases import Case
from tests.torture.outcome import read_trace
from tests.torture.trial import Part

CASE = Case(data="tensors", average=True)
STEPS, STOPPED = 20, 9
Damage = tuple[str, Callable[[Path], object]]


def flip(bit: int) -> Callable[[Path], object]:
    """Return a function that flips one bit of a file."""

    def turn(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)

    return turn


def cut(size: int) -> Callable[[Path], object]:
    """Return a function that truncates a file."""
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def damages(path: Path, flips: int, draw: random.Random) -> Iterator[Damage]:
    """Yield random bit flips, a flip at either end, three truncations, and a deletion."""
    size = path.stat().st_size
    bits = {0, size * 8 - 1, *(draw.randrange(size * 8) for _ in range(flips))}
    for bit in sorted(bits):
        yield f"{path.name}: bit {bit}", flip(bit)
    for left in (0, size // 2, size - 1):
        yield f"{path.name}: cut to {left} of {size} bytes", cut(left)
    yield f"{path.name}: gone", Path.unlink


def damage_all(folder: Path, flips: int, *, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Damage each file in many ways, and open the run; return outcomes and errors.

    A run is lost if it does not open. A bad checkpoint was loaded if the state is not that of its
    step.
    """
    whole = Part(CASE, folder / "whole", steps=STEPS, traced=True)
    whole.outcome()
    steps = dict(read_trace(whole.trace))
    stopped = Part(CASE, folder / "stopped", steps=STEPS)
    child = stopped.start()
    child.wait_for(f"step {STOPPED}")
    child.kill()
    child.close()
    newest = max((stopped.folder / "checkpoints").glob("step-*"))
    draw, ends, wrong = random.Random(seed), Counter[str](), []
    for file in sorted(newest.iterdir()):
        for name, damage in damages(file, flips, draw):
            run = Part(CASE, folder / "damaged", steps=STEPS, resumed=True)
            shutil.rmtree(run.folder, ignore_errors=True)
            shutil.copytree(stopped.folder, run.folder)
            damage(run.folder / "checkpoints" / newest.name / file.name)
            end = _open(run, steps, int(newest.name.split("-")[1]))
            ends[end] += 1
            if end not in GOOD_ENDS:
                wrong.append(f"{name}: {end}")
    return ends, wrong


GOOD_ENDS = ("an older checkpoint was loaded", "nothing was changed by it")


def _open(run: Part, steps: dict[int, str], newest: int) -> str:
    run.trace.unlink(missing_ok=True)
    child = run.look()
    code = child.wait()
    child.close()
    trace = read_trace(run.trace)
    if code or not trace:
        return "lost: the run does not open"
    step, digest = trace[0]
    if step == 0:
        return "lost: it restarted at step 0"
    if steps[step] != digest:
        return "a bad checkpoint was loaded"
    return GOOD_ENDS[step == newest]
