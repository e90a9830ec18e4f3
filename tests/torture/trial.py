"""One case: the run as it is, the run that is killed and gone on with, and what differs."""

import json
import mmap
import random
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import surestep
from surestep.trainer.fit import fit
from surestep.trainer.session import Session
from tests.torture.breakages import BREAKAGES
from tests.torture.cases import Case
from tests.torture.forked import Child
from tests.torture.outcome import Trace, differences, outcome, read_told
from tests.torture.phases import Deadly, Phases, Slow, Watch, hit, slow_accuracy
from tests.torture.recipe import SAVE_EVERY, STEPS, WIDTH, config, task

# How many times each phase begins in a run, less one or two; and how long it is drawn out at least.
OCCURS = {"step": 19, "boundary": 2, "evaluation": 4, "save": 8}
LASTS_S = {"step": 0.01, "boundary": 0.008, "evaluation": 0.004, "save": 0.03}
PAUSE_S = {"step": 0.004, "boundary": 0.004, "evaluation": 0.004, "save": 0.002}
ATTEMPTS = 6


@dataclass
class Trial:
    """What came of a case.

    Attributes:
        kills: what each kill hit, and what the disk showed of it.
        wanted: whether one of them hit the phase that the case names.
        different: what is not bit for bit the same; nothing where all is well.
    """

    case: str
    kills: list[dict[str, Any]] = field(default_factory=list)
    wanted: bool = False
    different: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """One process of a run: from its start, or from where the last one was killed."""

    case: Case
    folder: Path
    resumed: bool = False
    steps: int = STEPS
    width: int = WIDTH
    save_every: int = SAVE_EVERY
    traced: bool = False
    slow: Slow | None = None
    deadly: Deadly | None = None
    broken: str | None = None

    def start(self) -> Child:
        """Fork the process."""
        return Child(self._train)

    def outcome(self) -> dict[str, Any]:
        """Let the run go to its end, and return what it has come to."""
        self.start().finish()
        return self.came_to()

    def is_finished(self) -> bool:
        """Say whether a process got to the end."""
        return self._result.exists()

    def came_to(self) -> dict[str, Any]:
        """Return what a process that got to the end has left."""
        result: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
        return {**result, **read_told(self.folder)}

    @property
    def _result(self) -> Path:
        return self.folder.with_name(self.folder.name + ".json")

    def _train(self, shared: mmap.mmap, pipe: int) -> None:
        checkpoints = str(self.folder.resolve() / "checkpoints")
        phases = Phases(shared, pipe, checkpoints, slow=self.slow, deadly=self.deadly)
        phases.watch()
        if self.deadly is not None and self.deadly.kills:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it: EFBIG then
        if self.broken is not None:
            BREAKAGES[self.broken]()
        with self._prepare(phases) as session:
            fit(session)
            phases.enter("end")
            result = outcome(session)
        self._result.write_text(json.dumps(result), encoding="utf-8")

    def _prepare(self, phases: Phases) -> Session:
        callbacks: list[surestep.Callback] = [Watch(phases)]
        if self.traced:
            callbacks.append(Trace(self.trace))
        options = {"steps": self.steps, "save_every": self.save_every}
        return surestep.prepare(
            task(self.case, metric=slow_accuracy(phases), width=self.width),
            config(self.case, resumed=self.resumed, **options),
            run=self.folder,
            callbacks=callbacks,
        )

    def look(self) -> Child:
        """Fork a process that opens the run, traces what it has loaded, and lets it go."""
        return Child(self._look)

    def _look(self, shared: mmap.mmap, pipe: int) -> None:
        with self._prepare(Phases(shared, pipe, "nowhere")) as session:
            Trace(self.trace).on_start(session.state)

    @property
    def trace(self) -> Path:
        """Where a process that is traced writes its steps."""
        return self.folder.with_name(self.folder.name + ".trace")


def trial(case: Case, folder: Path, *, seed: int = 0, broken: str | None = None) -> Trial:
    """Kill a run twice, in the phase of the case and at any moment; go on, and compare.

    A kill that misses its phase counts as one at any moment, and another run is killed.
    """
    draw, result = random.Random(f"{seed} {case}"), Trial(str(case))
    whole = Part(case, folder / "whole", broken=broken).outcome()
    for attempt in range(ATTEMPTS):
        run = folder / f"killed-{attempt}"
        slow = Slow(case.kill, draw.randint(1, OCCURS[case.kill]), PAUSE_S[case.kill])
        first = Part(case, run, slow=slow, broken=broken)
        again = Part(case, run, resumed=True, broken=broken)
        result.kills.append(_kill(first, f"{slow.phase} {slow.count}", draw))
        if draw.random() < 0.5:  # at any moment; but every other time of a save
            result.kills.append(_kill(again, "step 1", draw, 0.05))
        else:
            saving = replace(again, slow=Slow("save", 1, PAUSE_S["save"]))
            result.kills.append(_kill(saving, "save 1", draw))
        try:
            result.different += differences(whole, again.outcome())
        except AssertionError as error:
            result.different.append(str(error))
        result.wanted |= any(_is(each, case.kill) for each in result.kills)
        if result.wanted or result.different:
            break
    return result


def _is(kill: dict[str, Any], phase: str) -> bool:
    return bool(kill["in_save"]) if phase == "save" else kill["phase"] == phase


def _kill(
    part: Part, at: str, draw: random.Random, within_s: float | None = None
) -> dict[str, Any]:
    """Start a process, kill it at a random moment after it tells this; say what was hit."""
    child = part.start()
    try:
        if child.wait_for(at):
            time.sleep(draw.uniform(0, within_s or LASTS_S[at.split()[0]]))
        child.kill()
        found = dict(hit(child.shared))
        if child.code != -9:
            found |= {"phase": f"none: it had ended with {child.code}", "in_save": False}
    finally:
        child.close()
    return {**found, "left": leftovers(part.folder)}


def leftovers(run: Path) -> list[str]:
    """Return what a dead process left half done among the checkpoints."""
    folder = run / "checkpoints"
    return sorted(each.name for each in folder.glob(".*")) if folder.exists() else []
