"""Run one case undisturbed, then killed and resumed, and compare."""

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
from tests.torture.cases import Case
from tests.torture.forked import Child
from tests.torture.mutations import BREAKAGES
from tests.torture.outcome import Trace, differences, outcome, read_events
from tests.torture.phases import Deadly, Phases, Slow, Watch, hit, slow_accuracy
from tests.torture.recipe import SAVE_EVERY, STEPS, WIDTH, config, task

# How often each phase starts in a run, less one or two, and its minimal duration when prolonged.
OCCURS = {"step": 19, "boundary": 2, "evaluation": 4, "save": 8}
LASTS_S = {"step": 0.01, "boundary": 0.008, "evaluation": 0.004, "save": 0.03}
PAUSE_S = {"step": 0.004, "boundary": 0.004, "evaluation": 0.004, "save": 0.002}
ATTEMPTS = 6


@dataclass
class Trial:
    """The outcome of a case.

    Attributes:
        kills: the phase that each kill hit, and what it left on the disk.
        wanted: whether one of them hit the phase of the case.
        different: what is not bitwise equal.
    """

    case: str
    kills: list[dict[str, Any]] = field(default_factory=list)
    wanted: bool = False
    different: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """One process of a run: the first, or one that resumes after a kill."""

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
        """Finish the run, and return its results."""
        self.start().finish()
        return self.came_to()

    def is_finished(self) -> bool:
        """Return whether a process finished the run."""
        return self._result.exists()

    def came_to(self) -> dict[str, Any]:
        """Return the results of the process that finished the run."""
        result: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
        return {**result, **read_events(self.folder)}

    @property
    def _result(self) -> Path:
        return self.folder.with_name(self.folder.name + ".json")

    def _train(self, shared: mmap.mmap, pipe: int) -> None:
        checkpoints = str(self.folder.resolve() / "checkpoints")
        phases = Phases(shared, pipe, checkpoints, slow=self.slow, deadly=self.deadly)
        phases.watch()
        if self.deadly is not None and self.deadly.kills:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it and gets EFBIG
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
        """Fork a process that opens the run, records the loaded state, and closes it."""
        return Child(self._look)

    def _look(self, shared: mmap.mmap, pipe: int) -> None:
        with self._prepare(Phases(shared, pipe, "nowhere")) as session:
            Trace(self.trace).on_start(session.state)

    @property
    def trace(self) -> Path:
        """Return the file to which a traced process writes its steps."""
        return self.folder.with_name(self.folder.name + ".trace")


def trial(case: Case, folder: Path, *, seed: int = 0, broken: str | None = None) -> Trial:
    """Kill a run twice, in the phase of the case and at any moment; resume, and compare.

    A kill that misses its phase counts as one at any moment, and another run is killed.
    """
    draw, result = random.Random(f"{seed} {case}"), Trial(str(case))
    whole = Part(case, folder / "whole", broken=broken).outcome()
    for attempt in range(ATTEMPTS):
        run = folder / f"killed-{attempt}"
        # On a busy machine this process may come late, so the last attempts leave it seconds.
        pause_s = PAUSE_S[case.kill] * (1 if attempt < ATTEMPTS // 2 else 1000)
        slow = Slow(case.kill, draw.randint(1, OCCURS[case.kill]), pause_s)
        first = Part(case, run, slow=slow, broken=broken)
        again = Part(case, run, resumed=True, broken=broken)
        result.kills.append(_kill(first, f"{slow.phase} {slow.count}", draw))
        if draw.random() < 0.5:  # at any moment; half of the time during a save
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
    """Start a process, kill it at a random moment after this report; return the phase hit."""
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
    """Return the incomplete files that a dead process left among the checkpoints."""
    folder = run / "checkpoints"
    return sorted(each.name for each in folder.glob(".*")) if folder.exists() else []
