"""Law 2 for longer runs: extending a run equals training that length at once, or is rejected.

A schedule that depends on the length of the run has used different rates than the longer run
would have, so a resume without an error would equal neither run.
"""

from collections.abc import Callable
from typing import Any

import pytest

import surestep
from surestep.base.errors import RunError
from tests.laws.support.registry_entries import optimizers
from tests.laws.support.tasks import Augmented, assert_moved, assert_same, session_of, snapshot
from tests.laws.test_law_2_resuming import Folder, task_of

SHORT, LONG = 10, 20
BASE = {"batch_size": 9, "micro_batch_size": 5}
WSD = {"name": "warmup_stable_decay", "decay": "4 steps"}


def augmented() -> surestep.Task:
    return task_of(Augmented())


def trained(
    task: surestep.Task, folder: Any, steps: int, *, stop_at: int | None = None, **more: Any
) -> Any:
    with session_of(task, folder, max_steps=steps, **BASE, **more) as session:
        for result in session.steps():
            if result.step == stop_at:
                break
        session.save()
        session.end("finished" if stop_at is None else "stopped")
    return session


def check_extended(
    folder: Folder,
    task: Callable[[], surestep.Task] = augmented,
    *,
    stop_at: int | None = None,
    **more: Any,
) -> bool:
    """Extend a run; return whether that was rejected."""
    run = folder()
    short = snapshot(trained(task(), run, SHORT, stop_at=stop_at, **more))
    try:
        longer = trained(task(), run, LONG, **more)
    except RunError:
        return True
    assert_moved(short, snapshot(longer))
    whole = trained(task(), folder(), LONG, **more)
    assert_same(snapshot(whole), snapshot(longer))
    assert whole.state.progress == longer.state.progress
    return False


@pytest.mark.parametrize(
    ("more", "stop_at", "rejected"),
    [
        ({}, None, False),
        ({"schedule": {"warmup": "4 steps"}}, None, False),
        ({"schedule": {"warmup": "40%"}}, None, True),
        ({"schedule": {"name": "step", "step_size": "3 steps", "gamma": 0.5}}, 7, False),
        ({"schedule": {"name": "cosine"}}, None, True),
        ({"schedule": {"name": "linear"}}, 3, True),
        ({"schedule": WSD}, None, True),
        ({"schedule": WSD}, 6, False),
        ({"average": {"kind": "swa", "start": "2 steps"}}, None, False),
        ({"average": {"kind": "swa", "start": "50%"}}, None, True),
        ({"average": {"kind": "swa", "start": "50%"}}, 4, False),
    ],
    ids=[
        *("constant", "warm-up", "warm-up of a share", "step", "cosine", "linear"),
        *("decay that is over", "decay to come", "average", "average of a share"),
        "average to come",
    ],
)
def test_extended_run_equals_the_longer_run_or_is_rejected(folder, more, stop_at, rejected):
    assert check_extended(folder, stop_at=stop_at, **more) is rejected


@pytest.mark.parametrize("name", optimizers.ENTRIES)
def test_run_of_any_optimizer_can_be_extended(folder, name):
    entry = optimizers.ENTRIES[name]
    assert not check_extended(folder, lambda: surestep.Task(**entry.parts()), **entry.options)
