"""Law 4: callbacks, evaluations, logging and saving do not change a run.

Weights, buffers, optimizer state and schedule are compared bit for bit. The
model has dropout and BatchNorm, the data draws from torch's, numpy's and Python's generators.
"""

import dataclasses
import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from surestep import Request
from tests.laws.support.tasks import (
    QUIET,
    Augmented,
    assert_same,
    rows,
    session_of,
    snapshot,
    train,
    with_batchnorm,
)

Folder = Callable[[], Path]
OPTIONS: dict[str, Any] = {"max_steps": 14, "batch_size": 8, "micro_batch_size": 5}
MOMENTS = ["on_start", "on_batch", "on_backward", "on_step", "on_log", "on_evaluate", "on_save"]
MOMENTS += ["on_end"]


def task_of(**options: Any) -> surestep.Task:
    model, loss = with_batchnorm(), nn.CrossEntropyLoss()
    accuracy = {"accuracy": lambda outputs, y: (outputs.argmax(1) == y).float().mean()}
    return surestep.Task(model, loss, Augmented(), val=Augmented(20), metrics=accuracy, **options)


def nasty(moments: list[str], request: Request | None) -> surestep.Callback:
    """Make a callback that draws, changes the model's mode and makes a request in each hook."""

    class Disturbing(surestep.Callback):
        calls = 0

        def look(self, state, *_):
            self.calls += 1
            torch.rand(3), np.random.rand(), random.random()
            state.model.train(self.calls % 2 == 0)
            return request

    for moment in moments:
        setattr(Disturbing, moment, Disturbing.look)
    return Disturbing()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the end of a run that takes bare steps."""
    return snapshot(train(task_of(), tmp_path_factory.mktemp("bare") / "run", **OPTIONS))


def check_callback(
    folder: Folder, moment: str, request: Request | None, bare: dict[str, Any] | None = None
) -> None:
    """Compare a run that has a callback in one hook with a run without callbacks."""
    callback = nasty([moment], request)
    bare = bare or snapshot(train(task_of(), folder(), **OPTIONS))
    with session_of(task_of(), folder(), callbacks=[callback], **OPTIONS) as watched:
        for result in watched.steps():
            if moment == "on_evaluate" and result.step % 5 == 0:
                watched.evaluate()
            if moment == "on_save" and result.step % 5 == 0:
                watched.save()
        end = snapshot(watched)
    assert callback.calls
    assert_same(bare, end)


@pytest.mark.parametrize("request_", [None, Request.SAVE, Request.EVALUATE])
@pytest.mark.parametrize("moment", MOMENTS)
def test_run_with_a_callback_equals_one_without(folder, bare, moment, request_):
    if moment == "on_evaluate" and request_ is Request.EVALUATE:
        request_ = Request.SAVE  # an evaluation that requests an evaluation never ends
    check_callback(folder, moment, request_, bare)


def test_two_callbacks_with_all_hooks_change_nothing(folder, bare):
    two = [nasty(MOMENTS, None), nasty(MOMENTS[:4], Request.SAVE)]
    assert_same(bare, snapshot(train(task_of(), folder(), callbacks=two, **OPTIONS)))


SCHEDULES = {
    "as it comes": {},
    "at every step": {
        "validation": {"every": "1 step"},
        "checkpoint": {"every": "1 step", "keep_last": 1},
        "logging": {"every": "1 step"},
    },
    "by items": {
        "validation": {"every": "20 items", "batch_size": 7},
        "checkpoint": {"every": "30 items"},
        "logging": {"every": "50 items"},
    },
    "in the middle": {
        "validation": {"every": "0.4 epochs", "metric": "accuracy"},
        "checkpoint": {"every": "5 steps", "keep_last": 9, "keep_best": 3},
        "logging": {"every": "3 steps"},
    },
    "hardly": {
        "validation": {"every": "9 epochs"},
        "checkpoint": {"every": "9 epochs"},
        "logging": {"every": "60 minutes"},
    },
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_intervals_of_logging_evaluating_and_saving_change_nothing(folder, bare, name):
    """Compare `Trainer.fit()` that logs, evaluates and saves with bare steps."""
    options = {**OPTIONS, **SCHEDULES[name]}
    options["logging"] = {**QUIET, **options.get("logging", {})}
    trainer = surestep.Trainer(task_of(), surestep.Config(**options), run=folder())
    trainer.fit()
    assert_same(bare, snapshot(trainer.session))


def test_evaluations_neither_apply_nor_change_a_transform(folder):
    def jittered(inputs, targets):
        return inputs + 0.1 * torch.randn(inputs.shape) + 0.1 * random.random(), targets

    ends = []
    for every in (None, 1):
        task = dataclasses.replace(task_of(), batch_transform=jittered)
        with session_of(task, folder(), **OPTIONS) as session:
            for _ in session.steps():
                if every:
                    session.evaluate("train")
                    random.random()
            ends.append(snapshot(session))
    assert_same(*ends)


def check_workers(folder: Folder) -> None:
    """Compare a run that loads in its own process with one that has two workers."""
    alone = train(task_of(), folder(), **OPTIONS)
    many = train(task_of(), folder(), data={"num_workers": 2, "prefetch_factor": 4}, **OPTIONS)
    assert_same(snapshot(alone), snapshot(many))


def test_number_of_workers_changes_nothing(folder):
    check_workers(folder)


def test_workers_end_with_the_session(folder):
    """Workers that are not shut down block the garbage collector for ten seconds."""
    before = multiprocessing.active_children()
    session = train(task_of(), folder(), data={"num_workers": 2}, **OPTIONS)
    assert session.plan.data_persistent_workers
    assert multiprocessing.active_children() == before


def test_loading_restores_the_generators_of_the_caller(folder):
    """Draws of the data do not change what other code draws between steps."""
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    with session_of(task_of(), folder(), **OPTIONS) as session:
        batches = session.evaluations._evaluator.loaders["train"].batches(0)
        np.random.seed(3), random.seed(3)
        for _ in range(3):
            next(batches)
        drawn = np.random.rand(), random.random()
    np.random.seed(3), random.seed(3)
    assert drawn == (np.random.rand(), random.random())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("part", ["val", "train"])
def test_evaluating_any_split_within_an_epoch_changes_nothing(folder, bare, part, workers):
    options = {**OPTIONS, "data": {"num_workers": workers}}
    with session_of(task_of(), folder(), **options) as session:
        for result in session.steps():
            if result.step in (2, 8, 9):
                session.evaluate(part)
    assert_same(bare, snapshot(session))


def check_evaluation(folder: Folder, sizes: tuple[int, ...]) -> None:
    """Compare repeated evaluations in batches of several sizes with the model in eval mode.

    Dropout is off, BatchNorm uses its running statistics, the mean is over the items.
    """
    x, y = rows(20)
    y[::3] = -100
    task = surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), rows(), val=(x, y))
    found = []
    for size in sizes:
        with session_of(task, folder(), max_steps=2, validation={"batch_size": size}) as session:
            found += [session.evaluate()["val/loss"], session.evaluate()["val/loss"]]
    task.model.eval()
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(task.model(x), y))
    assert found == pytest.approx([expected] * 2 * len(sizes), rel=1e-6)


def test_evaluation_does_not_depend_on_its_time_or_batch_size(folder):
    check_evaluation(folder, (20, 7, 1))


def test_drawing_evaluating_and_saving_between_steps_changes_nothing(folder, bare):
    """Between two steps a program may draw, evaluate, save, and set the model to eval mode."""
    with session_of(task_of(), folder(), **OPTIONS) as session:
        for result in session.steps():
            torch.rand(5), np.random.rand(), random.random()
            session.model.eval()
            float(result.loss), float(result.grad_norm), bool(result.took_step)
            session.evaluate("val")
            session.save()
    assert_same(bare, snapshot(session))
