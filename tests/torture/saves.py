"""A save that is killed at each call it makes, and in the middle of each file it writes.

The calls are counted as they happen, so that a save that is written otherwise is still killed at
each of its calls: the k-th is the end of a process, k = 1, 2, ... until a process survives.
"""

from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.manifest import verify
from tests.torture.cases import Case
from tests.torture.outcome import differences
from tests.torture.phases import Deadly
from tests.torture.trial import Part, leftovers

SAVE = 3  # there are two checkpoints before it, and one of them makes way for it
CASE = Case(data="tensors", average=True)
STEPS = 8


@dataclass
class Killed:
    """A process that ended itself within a save.

    Attributes:
        at: the call, or how many bytes of a file.
        good: the checkpoints that verify; of damaged ones there must be none.
        different: what the run that went on from there came to otherwise.
    """

    at: str
    left: list[str]
    good: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def each_call(
    folder: Path, calls: list[int] | None = None, broken: str | None = None
) -> list[Killed]:
    """Kill a run at each call of a save, or at some; go on each time."""
    deadly = (Deadly(SAVE, call=number) for number in calls or count(1))
    return _each(folder, deadly, broken)


def each_size(folder: Path, sizes: list[int], broken: str | None = None) -> list[Killed]:
    """Kill a run as any file of a save outgrows so many bytes; go on each time."""
    return _each(folder, (Deadly(SAVE, file_bytes=size) for size in sizes), broken)


def _each(folder: Path, deadly: Any, broken: str | None) -> list[Killed]:
    whole = Part(CASE, folder / "whole", steps=STEPS, broken=broken).outcome()
    found = []
    for number, each in enumerate(deadly):
        run = folder / f"killed-{number}"
        child = Part(CASE, run, steps=STEPS, deadly=each, broken=broken).start()
        ended = child.wait()
        child.close()
        if ended >= 0:
            assert ended == 0, f"a run that was not killed ended with {ended}"
            break
        found.append(_look(run, f"call {each.call}" if each.call else f"{each.file_bytes} bytes"))
        try:
            again = Part(CASE, run, resumed=True, steps=STEPS, broken=broken).outcome()
            found[-1].different = differences(whole, again)
        except AssertionError as error:
            found[-1].different = [str(error)]
    return found


def _look(run: Path, at: str) -> Killed:
    killed = Killed(at, leftovers(run))
    for path in list_checkpoints(run / "checkpoints"):
        try:
            verify(path)
            killed.good.append(path.name)
        except CheckpointError as error:
            killed.damaged.append(str(error))
    return killed


def as_json(killed: list[Killed]) -> dict[str, Any]:
    """Return what was found as JSON can hold it."""
    return {"killed": [asdict(each) for each in killed]}
