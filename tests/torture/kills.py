"""Kill at random moments while a save is in progress, resume, and check the result."""

import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from surestep.record.events import read_events
from tests.torture.cases import Case
from tests.torture.outcome import differences, read_trace
from tests.torture.phases import hit
from tests.torture.trial import Part, leftovers

CASE = Case(augmentation="numpy", data="map", average=True)
STEPS, WIDTH = 40, 8_000  # 120,000 parameters: 1.9 MB with AdamW and the average, each step


@dataclass
class Count:
    """The outcomes of all kills.

    Attributes:
        in_save: kills that left an incomplete checkpoint.
        lost: resumes that failed, restarted at step 0, or used an older checkpoint than the newest
            reported one.
        bad: resumes that loaded a state other than that of the run at that step.
        equal: resumes whose steps were all bitwise equal to those of the run never killed.
        ended: runs that finished between kills, all equal to the one never killed.
    """

    kills: int = 0
    in_save: int = 0
    resumes: int = 0
    equal: int = 0
    lost: int = 0
    bad: int = 0
    ended: int = 0
    different: list[str] = field(default_factory=list)


def kill_many(folder: Path, wanted: int, *, seed: int = 0, width: int = WIDTH) -> Count:
    """Kill until so many kills were inside a save; go on after each."""
    options = {"steps": STEPS, "width": width, "save_every": 1}
    whole = Part(CASE, folder / "whole", traced=True, **options)
    expected = whole.outcome()
    steps = dict(read_trace(whole.trace))
    draw, count, lasts_s, run = random.Random(seed), Count(), 0.05, 0
    while count.in_save < wanted:
        if count.kills and count.kills % 25 == 0:
            print(f"  {count}", flush=True)
        part = Part(CASE, folder / f"run-{run}", traced=True, resumed=True, **options)
        killed, lasts_s = _kill(part, draw, lasts_s, count)
        _judge(part, steps, count)
        if not killed:
            count.different += differences(expected, part.outcome())
            count.ended += 1
            shutil.rmtree(part.folder)
            run += 1
    return count


def _kill(part: Part, draw: random.Random, lasts_s: float, count: Count) -> tuple[bool, float]:
    """Run a part until a random moment of one of its saves; say whether it was killed."""
    part.trace.unlink(missing_ok=True)
    known = _reported_step(part.folder)
    child = part.start()
    try:
        reached = child.wait_for(f"save {draw.randint(1, 4)}")
        time.sleep(draw.uniform(0, lasts_s))
        child.kill()
        saving = bool(hit(child.shared)["in_save"])
    finally:
        child.close()
    killed = reached and child.code == -9
    if killed:
        count.kills += 1
        count.in_save += any(name.startswith(".tmp-") for name in leftovers(part.folder))
    elif child.code != 0:
        count.lost += 1
        count.different.append(f"{part.folder.name} ended with {child.code}")
    start = read_trace(part.trace)[:1]
    is_done = known == STEPS  # it was killed at its end: no step is left to be traced
    if known and not is_done and not (start and start[0][0] >= known):
        count.lost += 1
        count.different.append(f"{part.folder.name}: step {known} was saved, then {start}")
    # A kill that came too late was drawn from too long a time, and the other way round.
    return killed, min(0.5, max(0.005, lasts_s * (1.05 if saving else 0.9)))


def _reported_step(run: Path) -> int:
    """Return the step of the last checkpoint that the run reported."""
    if not (run / "events.jsonl").exists():
        return 0
    events = read_events(run / "events.jsonl")
    return max((each["step"] for each in events if each["event"] == "checkpoint"), default=0)


def _judge(part: Part, steps: dict[int, str], count: Count) -> None:
    """Compare all that a process has loaded and done with the run that was never killed."""
    trace = read_trace(part.trace)
    if not trace or not trace[0][0]:
        return  # it restarted at step 0: there was no checkpoint yet
    count.resumes += 1
    start, loaded = trace[0]
    count.bad += steps[start] != loaded
    wrong = [step for step, digest in trace if steps[step] != digest]
    count.equal += not wrong
    if wrong:
        count.different.append(f"{part.folder.name}: resumed at {start}, other bits at {wrong[:3]}")
