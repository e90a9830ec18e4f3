"""A run that goes back after a loss spike, killed at random moments around it."""

import json
import mmap
import os
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import surestep
from surestep.record.events import read_events
from surestep.trainer.fit import fit
from surestep.trainer.session import Session
from surestep.trainer.spike_rollback import SpikeWatch
from tests.laws.spikes import BATCH, DECAY, LR, task_of
from tests.torture.breakages import BREAKAGES
from tests.torture.forked import Child
from tests.torture.outcome import differences, outcome

WITHIN_S = {"spike": 0.02, "back": 0.04}  # of the log point at which it goes back, and after it


@dataclass(frozen=True)
class Attempt:
    """One process of a run that goes back.

    Attributes:
        async_save: it saves without waiting for the disk.
    """

    folder: Path
    async_save: bool
    broken: str | None = None

    def start(self) -> Child:
        """Fork the process; it tells "spike" before it goes back, and "back" after it."""
        return Child(self._train)

    def outcome(self) -> dict[str, Any]:
        """Let the run go to its end, and return what it has come to."""
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

        def go_back(watch: SpikeWatch, *args: Any) -> str:
            os.write(pipe, b"spike\n")
            said = own(watch, *args)
            os.write(pipe, b"back\n")
            return said

        SpikeWatch._go_back = go_back  # type: ignore[method-assign]
        with self._prepare() as session:
            fit(session)
            result = outcome(session)
        result["spikes"] = asdict(session.state.spikes)
        result["skipped"] = [dict(each) for each in session.run.skipped.steps]
        result["losses"] = way_of(self.folder)
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


def way_of(folder: Path) -> dict[int, Any]:
    """Return the loss of each step on the way that the run took in the end."""
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
    """Kill runs around their way back, go on each time in a fresh process, and compare.

    Returns what differs from the run that was never killed, how many kills there were, and how
    many times a run went back that had gone back before.
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
    """Kill a process at a random moment around its way back; say whether it came there.

    With `at_once` it is killed as soon as it went back, before it saves anything of its new way,
    which takes a few milliseconds on a fast machine.
    """
    at = "back" if at_once else draw.choice(list(WITHIN_S))
    child = attempt.start()
    try:
        if child.wait_for(at) and not at_once:
            time.sleep(draw.uniform(0, WITHIN_S[at]))
        child.kill()
        return child.code == -9
    finally:
        child.close()


def rollbacks_in(folder: Path) -> int:
    """Count how often a run went back, in all of its processes."""
    return sum(event["event"] == "rollback" for event in read_events(folder / "events.jsonl"))
