"""Kill the workers of a search at random moments: `python -m tests.tuning.kills 20`.

The search must end with the asked number of finished trials, whose results are bitwise equal to
those of a search that was not killed, and trials must resume from their checkpoints.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from surestep.base.errors import RunError
from surestep.base.processes import list_children
from surestep.record.run import Run
from tests.tuning.kills_recipe import PAUSE

RECIPE = str(Path(__file__).with_name("kills_recipe.py"))
SPACE = 'optim.lr = "log(1e-3, 1e-1)"\ntask.hidden = [4, 8, 16]\n'
FIXED = [
    *("--max-steps", "300", "--validation.every", "100 steps", "--checkpoint.every", "15 steps"),
    *(
        "--sampler",
        "random",
        "--pruner",
        "none",
        "--grace",
        "2",
        "--workers",
        "2",
        "--threads",
        "1",
    ),
]
PAUSE_S = (0.5, 5.0)  # between a start and a kill
STEP_S = 0.01  # so a trial takes three seconds


class Search:
    """The command of a search that is started again after each kill.

    Args:
        folder: for the study and what the command prints.
        trials: how many the search has.
        step_s: how long a step takes at least.
        more: words of the command.
        environment: more variables.
    """

    def __init__(
        self,
        folder: Path,
        trials: int,
        step_s: float = 0.0,
        *,
        more: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._environment = {**os.environ, PAUSE: str(step_s), **environment}
        self.study = folder / "study"
        (folder / "space.toml").write_text(SPACE)
        self._words = [
            *(sys.executable, "-m", "surestep", "search", RECIPE, "--trials", str(trials)),
            *("--space", str(folder / "space.toml"), "--study", str(self.study), *FIXED),
            *more,
        ]
        self.log = folder / "log"
        self._log = self.log.open("ab")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command, if it does not run."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [*self._words],
                stdout=self._log,
                stderr=self._log,
                env=self._environment,
                start_new_session=True,
            )

    def wait_for_training(self) -> None:
        """Wait until a trial trains and has a checkpoint, or the command ends."""
        while self.process is not None and self.process.poll() is None:
            for path in self.study.glob("trials/*/checkpoints/step-*"):
                with suppress(RunError):
                    if Run(path.parents[1]).status["status"] == "running":
                        return
            time.sleep(0.05)

    def kill(self, choose: random.Random, *, is_command: bool) -> str:
        """Kill the command or, by chance, a worker in the background; return which."""
        assert self.process is not None
        background = [
            pid
            for pid in list_children(self.process.pid)
            if b"background" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        victim = choose.choice([self.process.pid, *background])
        victim = self.process.pid if is_command else victim
        os.kill(victim, signal.SIGKILL)
        if victim != self.process.pid:
            return "a worker in the background"
        self.process.wait()
        return "the command"

    def finish(self, timeout_s: float = 600) -> int:
        """Run the command to its end; return its exit code."""
        self.start()
        assert self.process is not None
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """Stop the command, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self._log.close()


def results(study: Path) -> dict[int, tuple[Any, Any]]:
    """Return params and values of the finished trials of a study, by number."""
    trials = json.loads((study / "report.json").read_text())["trials"]
    return {
        trial["number"]: (trial["params"], trial["values"])
        for trial in trials
        if trial["state"] == "finished"
    }


def resumed(study: Path) -> int:
    """Return how many trials resumed from a checkpoint."""
    runs = [Run(path) for path in sorted((study / "trials").iterdir()) if path.is_dir()]
    return sum(
        any(event["event"] == "resume" and event["step"] > 0 for event in run.events())
        for run in runs
    )


def kill_search(folder: Path, kills: int, trials: int, seed: int) -> list[str]:
    """Kill a search so many times; return what is wrong at its end."""
    choose, killed = random.Random(seed), []
    plain, search = Search(folder / "plain", trials), Search(folder / "killed", trials, STEP_S)
    try:
        codes = [plain.finish()]
        for number in range(kills):
            search.start()
            if number % 2:  # at any moment, also while the command starts
                time.sleep(choose.uniform(*PAUSE_S))
            else:
                search.wait_for_training()
            assert search.process is not None
            if search.process.poll() is not None:
                break
            killed.append(search.kill(choose, is_command=number % 2 == 0))
        codes.append(search.finish())
    finally:
        plain.close()
        search.close()
    found, expected = results(search.study), results(plain.study)
    print(f"{len(killed)} kills: {', '.join(killed)}. {resumed(search.study)} trials resumed.")
    problems = []
    if codes != [0, 0]:
        problems.append(f"exit codes {codes}")
    if len(found) != trials:
        problems.append(f"{len(found)} finished trials instead of {trials}")
    if len(killed) < kills:
        problems.append(f"the search ended after {len(killed)} kills")
    if not resumed(search.study):
        problems.append("no trial resumed from a checkpoint")
    problems += [
        f"trial {number}: {found[number]} instead of {expected.get(number)}"
        for number in found
        if found[number] != expected.get(number)
    ]
    return problems


if __name__ == "__main__":
    n_kills = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as where:
        for name in ("plain", "killed"):
            (Path(where) / name).mkdir()
        faults = kill_search(Path(where), n_kills, trials=3 * n_kills, seed=int(sys.argv[2]))
    print("\n".join(faults) or "All trials are as without kills.")
    sys.exit(bool(faults))
