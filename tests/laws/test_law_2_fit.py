"""Law 2: a resumed run uses each size that it found from the step on at which it found it.

The process that resumes has memory enough, so only what the run recorded makes its batches smaller.
"""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import surestep
from surestep.record.checkpoint.discovery import list_checkpoints, step_of
from surestep.trainer.fit import fit
from surestep.trainer.session import Session
from tests.laws.support import spike_task
from tests.laws.support.limited_memory import (
    LIMITS,
    OPTIONS,
    LimitedMemory,
    task_of,
    train_sized,
)
from tests.laws.support.tasks import assert_same, session_of, snapshot

Folder = Callable[[], Path]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the end of a run whose sizes were set."""
    return train_sized(tmp_path_factory.mktemp("sized") / "run", task_of)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow("kills or copies runs"))


def open_fitted(folder: str | Path, memory: LimitedMemory, **more: Any) -> Session:
    return session_of(
        task_of(memory), folder, callbacks=[memory], micro_batch_size="fit", **OPTIONS | more
    )


def resume(folder: str | Path, memory: LimitedMemory, **more: Any) -> tuple[int, dict[str, Any]]:
    """Train to the end; return the first step, and the state at the end."""
    with open_fitted(folder, memory, **more) as session:
        steps = [result.step for result in session.steps()]
    assert steps[-1] == 10
    return steps[0], snapshot(session)


class KilledLater(LimitedMemory):
    """Is killed with kill -9 at a moment of a step."""

    def __init__(self, moment: str, step: int) -> None:
        super().__init__(LIMITS)
        self.moment, self.at = moment, step

    def kill(self, moment: str) -> None:
        if moment == self.moment and self.step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def use(self, place: str, count: int) -> None:
        if self.ran_out:
            self.kill("taken again")
        super().use(place, count)

    def on_step(self, state: Any, result: Any) -> None:
        self.kill("not saved")


def train_until_killed(folder: Path, moment: str, step: int, saves: int | None) -> None:
    """Train in a fork that is killed; it saves after a step."""
    child = os.fork()
    if not child:
        try:
            with open_fitted(folder, KilledLater(moment, step)) as session:
                for result in session.steps():
                    if result.step == saves:
                        session.save()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("saves", [1, slow(None), slow(4)])
@pytest.mark.parametrize(
    ("moment", "step"), [("taken again", 3), slow("not saved", 3), slow("not saved", 7)]
)
def test_run_killed_around_a_step_again_equals_one_with_these_sizes(
    folder, expected, moment, step, saves
):
    check_killed(folder, expected, moment, step, saves)


def check_killed(
    folder: Folder, expected: dict[str, Any], moment: str, step: int, saves: int | None
) -> None:
    run, saved = folder(), saves is not None and saves < step
    train_until_killed(run, moment, step, saves)
    rest = LimitedMemory({first: limit for first, limit in LIMITS.items() if first > step})
    first, found = resume(run, rest)
    assert first == (saves + 1 if saved else 1)
    assert_same(found, expected)
    assert rest.ran_out == (2 if step < 7 else 0)


@pytest.mark.slow("kills or copies runs")
def test_run_resumed_from_an_earlier_checkpoint_uses_each_size_from_its_step_on(folder):
    check_earlier(folder)


def check_earlier(folder: Folder) -> None:
    run, expected = folder(), train_sized(folder(), task_of)
    with open_fitted(run, LimitedMemory(LIMITS), checkpoint={"keep_last": 20}) as session:
        for result in session.steps():
            if result.step in (1, 5, 9):
                session.save()
    for path in list_checkpoints(run / "checkpoints"):
        if step_of(path) > 1:
            shutil.rmtree(path)
    memory = LimitedMemory({})
    first, found = resume(run, memory, checkpoint={"keep_last": 20})
    assert first == 2
    assert_same(found, expected)
    assert memory.ran_out == 0


@pytest.mark.slow("kills or copies runs")
def test_mirror_has_the_sizes(folder, tmp_path, expected, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = f"file://{tmp_path}/mirror"
    with open_fitted(address, LimitedMemory(LIMITS)) as session:
        for result in session.steps():
            if result.step == 8:
                session.save()
                break
    shutil.rmtree("runs")
    memory = LimitedMemory({})
    first, found = resume(address, memory)
    assert first == 9
    assert_same(found, expected)


class SizesOfSteps(surestep.Callback):
    """Runs out of memory in the forward of step 65 above 4 rows, once; keeps the size of steps."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.ran_out = False

    def on_batch(self, state: Any, batch: Any) -> None:
        sizes = [micro.samples for micro in batch.micro_batches]
        self.sizes.append((state.progress.step + 1, max(sizes, default=0)))

    def limit(self, module: torch.nn.Module, args: Any) -> None:
        if module.training and self.sizes and self.sizes[-1][0] == 65 and not self.ran_out:
            self.ran_out = True
            raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.slow("kills or copies runs")
def test_rollback_uses_each_size_from_its_step_on(folder):
    seen, task = SizesOfSteps(), spike_task.task_of()
    task.model.register_forward_pre_hook(seen.limit)
    options = {
        "max_steps": 80,
        "batch_size": spike_task.BATCH,
        "micro_batch_size": "fit",
        "optim": {"lr": spike_task.LR, "weight_decay": spike_task.DECAY},
        "on_spike": "rollback",
        "checkpoint": {"every": "20 steps"},
        "logging": {"every": "25 steps"},
    }
    with session_of(task, folder(), callbacks=[seen], **options) as session:
        fit(session)
    before, again = seen.sizes[:75], seen.sizes[75:]
    assert before == [(step, 8 if step <= 65 else 4) for step in range(1, 76)]
    assert again[:4] == [(step, 8) for step in range(61, 65)]
    assert again[4:9] == [(step, 4) for step in range(65, 70)]
    assert seen.ran_out
