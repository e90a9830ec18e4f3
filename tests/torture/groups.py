"""Two ranks with data workers under torchrun, whose processes are killed one after another.

torchrun restarts the ranks after the kill of a rank, within a save or not, and of a data worker.
After the kill of torchrun or of all processes at once, it is called again.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from surestep.record.run import Run
from tests.multi_rank.torchrun import TORCHRUN

RECIPE = Path(__file__).with_name("group_recipe.py")
TARGETS = ("rank", "worker", "save", "launcher", "rank", "save", "worker", "group")
_GONE_S = 60.0  # until the processes of a killed launcher have exited
_START_S = 180.0  # until a start has made a step on a busy machine


class Group:
    """One run of two ranks, seen from outside.

    Args:
        folder: of this run and of the files that its processes write.
    """

    def __init__(self, folder: Path) -> None:
        self.run, self.notes = folder / "run", folder / "notes"
        self.notes.mkdir(parents=True)
        self.errors = folder / "errors"
        self._launcher: subprocess.Popen[bytes] | None = None
        self._seen = 0  # lines of steps that belong to processes that were killed

    def start(self, python: str = TORCHRUN[0]) -> None:
        """Call torchrun with a Python."""
        command = [
            python,
            *TORCHRUN[1:],
            "--standalone",
            "--nproc-per-node",
            "2",
            "--max-restarts",
            "30",
        ]
        command += ["-m", "surestep", "train", str(RECIPE), "--run-folder", str(self.run)]
        more = {"OMP_NUM_THREADS": "1", "GROUP": str(self.notes)}
        root = Path(__file__).parents[2]
        with self.errors.open("a") as out:
            self._launcher = subprocess.Popen(
                command, cwd=root, env={**os.environ, **more}, stdout=out, stderr=out
            )

    @property
    def launcher(self) -> subprocess.Popen[bytes]:
        """Return the process of torchrun."""
        assert self._launcher is not None
        return self._launcher

    def has_ended(self) -> bool:
        """Return whether torchrun has exited."""
        return self._launcher is None or self._launcher.poll() is not None

    def alive(self, kind: str) -> list[int]:
        """Return the processes of a kind that are alive: rank, rank-0, worker..."""
        found = (int(each.name.rsplit("-", 1)[1]) for each in self.notes.glob(f"{kind}-*"))
        return [pid for pid in found if _is_alive(pid)]

    def hold(self, step: int) -> None:
        """Let the run wait after a step: the kill of a slow test must not come after its end."""
        own = self.notes / "hold"
        own.with_suffix(".new").write_text(str(step))
        own.with_suffix(".new").replace(own)

    def wait_for_steps(self, count: int) -> bool:
        """Wait for this many steps since the last kill; return False if the run ended."""
        end = time.monotonic() + _START_S
        while len(self._steps()) - self._seen < count:
            if self.has_ended():
                return False
            if time.monotonic() > end:
                raise TimeoutError(f"no step in {_START_S:.0f} s: see {self.errors}")
            time.sleep(0.01)
        return True

    def _steps(self) -> list[str]:
        path = self.notes / "steps"
        return path.read_text().splitlines() if path.exists() else []

    def kill(self, target: str, draw: random.Random) -> bool:
        """Kill the named processes; return whether they were running."""
        pids = {
            "launcher": [self.launcher.pid],
            "group": [self.launcher.pid, *self.alive("rank"), *self.alive("worker")],
            "worker": self.alive("worker")[:1]
            if draw.random() < 0.5
            else self.alive("worker")[-1:],
        }.get(target) or self.alive(f"rank-{draw.randint(0, 1)}")
        if target == "save" and not self._is_saving():
            return False
        time.sleep(draw.uniform(0, 0.1))
        there = [pid for pid in pids if _killed(pid)]
        self._seen = len(self._steps())
        if target in ("launcher", "group"):
            self.launcher.wait()
        return bool(there) and len(there) >= len(pids) - 1  # a worker may exit by itself

    def _is_saving(self) -> bool:
        """Wait for a save to start; return whether one did."""
        end = time.monotonic() + 5
        while time.monotonic() < end and not self.has_ended():
            if any(self.run.glob("checkpoints/.tmp-*")):
                return True
            time.sleep(0.002)
        return False

    def left(self) -> list[int]:
        """Wait for all processes to exit; kill and return the others."""
        end = time.monotonic() + _GONE_S
        while (left := [*self.alive("rank"), *self.alive("worker")]) and time.monotonic() < end:
            time.sleep(0.1)
        return [pid for pid in left if _killed(pid)]

    def weights(self) -> torch.Tensor:
        """Return the last weights of the run."""
        os.environ.setdefault("GROUP", str(self.notes))
        from tests.torture.group_recipe import task

        net = task().model
        Run(self.run).load_model(net, which="last")
        return torch.cat([each.flatten().double() for each in net.state_dict().values()])


def kill_groups(folder: Path, wanted: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Kill this many processes of runs; compare each run with one never killed."""
    draw, kills, wrong, runs = random.Random(seed), Counter[str](), [], 0
    whole = Group(folder / "whole")
    whole.start()
    if whole.launcher.wait():
        return {}, [whole.errors.read_text()[-2000:]]
    expected, restarts = whole.weights(), 0
    while sum(kills.values()) < wanted and not wrong:
        group = Group(folder / f"killed-{runs}")
        runs += 1
        wrong += _kill_to_the_end(group, draw, kills, wanted)
        if not wrong and not torch.equal(group.weights(), expected):
            wrong.append(f"{group.run}: other weights")
        restarts += sum(each["event"] == "resume" for each in Run(group.run).events())
        print(f"  {sum(kills.values())} kills of {wanted}: {dict(kills)}, {runs} runs", flush=True)
    return {"kills": sum(kills.values()), **kills, "resumes": restarts, "runs": runs}, wrong


def _kill_to_the_end(
    group: Group, draw: random.Random, kills: Counter[str], wanted: int
) -> list[str]:
    """Kill and restart until the run is finished; return what went wrong."""
    while True:
        if group.has_ended():
            if left := group.left():
                return [f"{group.run}: {left} outlived their launcher"]
            if group.run.exists() and (bad := _damaged(group.run)):
                return [f"{group.run}: {bad}"]
            group.start()
        is_enough = sum(kills.values()) >= wanted
        if is_enough or not group.wait_for_steps(draw.randint(2, 10)):
            code = group.launcher.wait()
            return [] if code == 0 else [f"ended with {code}: see {group.errors}"]
        target = TARGETS[sum(kills.values()) % len(TARGETS)]
        if group.kill(target, draw):
            kills[target] += 1
        elif not group.has_ended():
            group.kill("group", draw)
            kills["group"] += 1


def _damaged(run: Path) -> list[str]:
    """Return the checkpoints of a run that do not verify."""
    if not (run / "config.json").exists():
        return []
    return [str(each) for each in Run(run).verify() if each.problems]


def _is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
