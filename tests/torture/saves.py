"""Kill a save at each call it makes, and within each file it writes.

The calls are counted as they happen, so any implementation of a save is killed at each of its
calls: a process dies at call k, for k = 1, 2, ... until a process survives.
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

SAVE = 3  # two checkpoints exist before it, and it replaces one of them
CASE = Case(data="tensors", average=True)
STEPS = 8


@dataclass
class Killed:
    """A process that killed itself within a save.

    Attributes:
        at: the call, or the bytes of a file.
        good: the checkpoints that verify; none may be corrupt.
        different: differences of the resumed run.
    """

    at: str
    left: list[str]
    good: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def each_call(
    folder: Path, calls: list[int] | None = None, broken: str | None = None
) -> list[Killed]:
    """Kill a run at each call of a save, or at some; resume each time."""
    deadly = (Deadly(SAVE, call=number) for number in calls or count(1))
    return _each(folder, deadly, broken)


def each_size(folder: Path, sizes: list[int], broken: str | None = None) -> list[Killed]:
    """Kill a run when a file of a save exceeds these bytes; resume each time."""
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
    """Return the result as a JSON-compatible dict."""
    return {"killed": [asdict(each) for each in killed]}
