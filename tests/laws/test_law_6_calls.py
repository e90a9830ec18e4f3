"""Law 6 on the host: a step makes few Python calls in few files.

`sys.setprofile` counts calls into functions of src/surestep, including each resumption of a
generator and each comprehension.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import surestep
from surestep.engine.step import loop
from tests.laws.support.tasks import rows, session_of

Folder = Callable[[], Path]
OURS = str(Path(surestep.__file__).parent)
FILES, CALLS = 7, 24
OPTIONS: dict[str, Any] = {
    "max_steps": 40,
    "batch_size": 16,
    "logging": {"every": "30 steps"},
    "schedule": {"name": "cosine", "warmup": "3 steps"},
    "data": {"drop_last": True},
}


def mlp_task() -> surestep.Task:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    return surestep.Task(model, nn.CrossEntropyLoss(), rows(400))


def calls_of(function: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Count the calls into surestep's code, by file and function."""
    found: Counter[tuple[str, str]] = Counter()

    def count(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found[Path(frame.f_code.co_filename).name, frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def shown(found: Counter[tuple[str, str]]) -> str:
    lines = [f"{n} x {file}: {name}" for (file, name), n in found.items()]
    return "\n".join([f"{found.total()} calls in {len(files_in(found))} files", *lines])


def files_in(found: Counter[tuple[str, str]]) -> set[str]:
    return {file for file, _ in found}


def check_files(folder: Folder) -> None:
    """Take one step on a loaded batch with `train_step` of engine/step/train_step.py."""
    with session_of(mlp_task(), folder(), **OPTIONS) as session:
        steps = session.steps()
        for _ in range(6):
            next(steps)
        batch = next(session.evaluations._evaluator.loaders["train"].batches(0))
        found = calls_of(lambda: loop.train_step(session.loop.context, batch))
        steps.close()
    assert len(files_in(found)) <= FILES, shown(found)


def check_calls(folder: Folder) -> None:
    """Take full iterations of `session.steps()`, from data to step, between two log points."""
    with session_of(mlp_task(), folder(), **OPTIONS) as session:
        steps = session.steps()
        for _ in range(6):
            next(steps)
        found = [calls_of(lambda: next(steps)) for _ in range(8)]
        steps.close()
    most = max(found, key=Counter.total)
    assert most.total() <= CALLS, shown(most)


def test_one_step_runs_through_few_files(folder):
    check_files(folder)


def test_full_iteration_makes_few_calls(folder):
    check_calls(folder)


def test_hook_that_a_callback_does_not_override_is_not_called(folder):

    class Idle(surestep.Callback):
        def on_end(self, state):
            return None

    def one(steps):
        return calls_of(lambda: next(steps))

    counts = []
    for callbacks in ([], [Idle(), Idle()]):
        with session_of(mlp_task(), folder(), callbacks=callbacks, **OPTIONS) as session:
            steps = session.steps()
            for _ in range(6):
                next(steps)
            counts.append(one(steps))
            steps.close()
    assert counts[0] == counts[1]


class Rows(torch.utils.data.Dataset):
    """Has a row for each index; notes where each process loads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        frame, files = sys._getframe(), set()
        while frame := frame.f_back:
            if "/surestep/engine/data/" in (name := frame.f_code.co_filename):
                files.add(Path(name).name)
        (self.folder / f"{index}").write_text("\n".join(files))
        return torch.ones(4) * index / 64, index % 3


@pytest.mark.slow("starts two workers")
def test_batch_enters_few_modules_on_its_way_to_the_step(folder):
    rows, entered = folder(), set()
    rows.mkdir()
    task = surestep.Task(nn.Linear(4, 3), loss="multiclass", train=Rows(rows))

    def note(frame: Any, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and "/surestep/engine/data/" in name:
            entered.add(Path(name).name)

    options = {"max_steps": 8, "batch_size": 8, "data": {"num_workers": 2}}
    with session_of(task, folder(), **options) as session:
        steps = session.steps()
        next(steps)
        sys.setprofile(note)
        try:
            next(steps)
        finally:
            sys.setprofile(None)
        list(steps)
    for path in rows.iterdir():
        entered |= set(path.read_text().split())
    assert {"sources.py", "batch_loader.py"} <= entered
    assert len(entered) <= 8, entered
