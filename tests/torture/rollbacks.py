"""Kill a run at random moments around its rollback after a loss spike."""

import json
import mmap
import os
import random
import signal
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import surestep
from surestep.record.events import read_events
from surestep.trainer.fit import fit
from surestep.trainer.session import Session
from surestep.trainer.spike_rollback import SpikeWatch
from tests.laws.support.spike_task import BATCH, DECAY, LR, task_of
from tests.torture.forked import Child
from tests.torture.mutations import BREAKAGES
from tests.torture.outcome import differences, outcome

WITHIN_S = {"spike": 0.02, "back": 0.04}  # of the log point with the rollback, and after it


@dataclass(frozen=True)
class Attempt:
    """One process of a run with a rollback.

    Attributes:
        async_save: saves do not wait for the disk.
        broken: the breakage of this package, if any.
        waits: for its kill, right after the rollback.
    """

    folder: Path
    async_save: bool
    broken: str | None = None
    waits: bool = False

    def start(self) -> Child:
        """Fork the process; it reports "spike" before the rollback, and "back" after it."""
        return Child(self._train)

    def outcome(self) -> dict[str, Any]:
        """Finish the run, and return its results."""
        self.start().finish()
        found: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
        return found

    @property
    def _result(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def _train(self, shared: mmap.mmap, pipe: int) -> None:
        if self.broken is not None:
            BREAKAGES[self.broken]()
        own = SpikeWatch._go_back

        def go_back(watch: SpikeWatch, *args: Any) -> None:
            os.write(pipe, b"spike\n")
            own(watch, *args)
            os.write(pipe, b"back\n")
            if self.waits:
                signal.pause()

        SpikeWatch._go_back = go_back  # type: ignore[method-assign]
        with self._prepare() as session:
            fit(session)
            result = outcome(session)
        result["spikes"] = asdict(session.state.spikes)
        result["skipped"] = [dict(each) for each in session.run.skipped.steps]
        result["losses"] = losses_by_step(self.folder)
        self._result.write_text(json.dumps(result), encoding="utf-8")

    def _prepare(self) -> Session:
        options = {
            **{"epochs": 1, "batch_size": BATCH, "optim.lr": LR, "optim.weight_decay": DECAY},
            **{"on_spike": "rollback", "checkpoint.every": "2 steps", "logging.every": "10 steps"},
            **{"validation.every": "30 steps", "checkpoint.async_save": self.async_save},
            "logging.progress": "quiet",
        }
        return surestep.prepare(
            task_of(dropout=0.2), surestep.Config.from_options(options), run=self.folder
        )


def losses_by_step(folder: Path) -> dict[int, Any]:
    """Return the loss of each step, without the steps that a rollback undid."""
    losses: dict[int, Any] = {}
    for event in read_events(folder / "events.jsonl"):
        if event["event"] in ("resume", "restart", "rollback"):
            losses = {step: each for step, each in losses.items() if step <= event["step"]}
        elif event["event"] == "steps":
            losses |= dict(enumerate(event["loss"], event["first"]))
    return losses


def kill_around(
    folder: Path, *, async_save: bool, kills: int = 6, seed: int = 0, broken: str | None = None
) -> dict[str, Any]:
    """Kill runs around their rollback, resume each time in a new process, and compare.

    Returns the differences from the run that was never killed, the number of kills, and the number
    of rollbacks that were repeated after a kill.
    """
    draw, count, again, run = random.Random(f"{seed} {async_save}"), 0, 0, 0
    whole = Attempt(folder / "whole", async_save, broken).outcome()
    different: list[str] = []
    while count < kills or run == 0:
        attempt = Attempt(folder / f"killed-{run}", async_save, broken)
        if count < kills and _kill(attempt, draw, at_once=count < 2):
            count += 1
            continue
        different += differences(whole, attempt.outcome())
        again += max(0, rollbacks_in(attempt.folder) - 1)
        run += 1
    return {"different": different, "kills": count, "again": again}


def _kill(attempt: Attempt, draw: random.Random, *, at_once: bool) -> bool:
    """Kill a process at a random moment around its rollback; return whether it got there.

    With `at_once` it is killed right after the rollback, before it saves any new step.
    """
    at = "back" if at_once else draw.choice(list(WITHIN_S))
    child = replace(attempt, waits=at_once).start()
    try:
        if child.wait_for(at) and not at_once:
            time.sleep(draw.uniform(0, WITHIN_S[at]))
        child.kill()
        return child.code == -9
    finally:
        child.close()


def rollbacks_in(folder: Path) -> int:
    """Count the rollbacks of a run in all of its processes."""
    return sum(event["event"] == "rollback" for event in read_events(folder / "events.jsonl"))
