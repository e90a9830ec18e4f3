"""Law 2: a run killed (-9) at a random moment and resumed equals one never killed, bit for bit.

Each case trains in its own process, which is killed twice: in the phase that the case names, and
at any moment. Each time a new process resumes. Weights, optimizer state, average, loss scale,
losses, norms, rates, evaluations and metrics equal those of the run that was never killed.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.torture.cases import Case, pairwise
from tests.torture.warm_process import ask

Folder = Callable[[], Path]
IN_SAVE_AT_LEAST = 0.2
KILLS: dict[str, list[dict[str, Any]]] = {}


def check_kills(folder: Folder, case: Case) -> list[dict[str, Any]]:
    """Kill a run of the case, resume it, and compare; return what each kill hit."""
    result = ask("trial", case=asdict(case), folder=str(folder()))
    assert result["different"] == []
    assert result["wanted"], f"no kill hit {case.kill}: {result['kills']}"
    kills: list[dict[str, Any]] = result["kills"]
    return kills


@pytest.mark.parametrize("case", pairwise(), ids=str)
def test_run_killed_at_any_moment_equals_one_never_killed(folder, case):
    KILLS[str(case)] = check_kills(folder, case)


def test_enough_kills_hit_a_save():
    if len(KILLS) < len(pairwise()):
        pytest.skip("Run the whole file: only some of its cases have run.")
    kills = [kill for kills_of_run in KILLS.values() for kill in kills_of_run]
    phases = Counter(kill["phase"] for kill in kills)
    in_save = sum(kill["in_save"] for kill in kills)
    print(f"{len(kills)} kills, {in_save} with a save in flight; {dict(phases)}")
    assert in_save / len(kills) >= IN_SAVE_AT_LEAST
    assert {"step", "boundary", "evaluation"} <= phases.keys()
