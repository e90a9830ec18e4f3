"""Law 1: a step that ran out of memory is that of a run with smaller micro-batches from it on.

The other run has fixed sizes: it is saved before the step, and resumes with the smaller one.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import surestep
from surestep.engine import private
from tests.laws.support.limited_memory import (
    FIT,
    HALVED,
    LIMITS,
    OPTIONS,
    OUT_OF_MEMORY,
    SIZES,
    LateDraws,
    LimitedMemory,
    Net,
    PlainNet,
    Stream,
    losses_of,
    noisy_transform,
    pad,
    task_of,
    train_fitted,
    train_sized,
)
from tests.laws.support.tasks import Augmented, assert_moved, assert_same, session_of

Folder = Callable[[], Path]


def slow(value: Any) -> Any:
    return pytest.param(value, marks=pytest.mark.slow("trains runs of each kind"))


def check(
    folder: Folder, memory: LimitedMemory, make: Any, sizes: dict[int, int] = SIZES, **more: Any
) -> None:
    fitted, sized = folder(), folder()
    now = train_fitted(fitted, memory, make, **more)
    expected = train_sized(sized, make, sizes, **more)
    assert_same(now, expected)
    assert_moved(now, snapshot_of_start(make))
    assert memory.batches == 10, "on_batch was called again"
    assert losses_of(surestep.Run(fitted)) == losses_of(surestep.Run(sized))


def snapshot_of_start(make: Any) -> dict[str, Any]:
    model = make(LimitedMemory({})).model
    return {f"model/{name}": value for name, value in model.state_dict().items()}


@pytest.mark.parametrize("net", [Net, slow(PlainNet), slow(LateDraws)])
@pytest.mark.parametrize("place", ["backward", slow("forward"), slow("loss")])
def test_step_again_equals_the_step_of_smaller_micro_batches(folder, net, place):
    memory = LimitedMemory(LIMITS, place)
    check(folder, memory, lambda memory: task_of(memory, net=net))
    assert memory.ran_out == 3


@pytest.mark.slow("trains runs of each kind")
@pytest.mark.parametrize("error", OUT_OF_MEMORY[1:])
def test_each_error_of_memory_is_known(folder, error):
    check(folder, LimitedMemory(LIMITS, error=error), task_of)


def loader(**options: Any) -> DataLoader:
    return DataLoader(Augmented(55), batch_size=16, shuffle=True, **options)


DATA: dict[str, Callable[[], Any]] = {
    "augmented": lambda: Augmented(55),
    "collated with noise": lambda: loader(collate_fn=pad),
    "workers": lambda: loader(collate_fn=pad, num_workers=2, persistent_workers=True),
    "stream": Stream,
    "stream in a worker": lambda: DataLoader(Stream(), batch_size=16, num_workers=1),
    "stream, collated with noise": lambda: DataLoader(Stream(), batch_size=16, collate_fn=pad),
}


@pytest.mark.slow("trains runs of each kind")
@pytest.mark.parametrize("kind", DATA)
def test_any_data_is_split_again(folder, kind):
    def make(memory: LimitedMemory) -> surestep.Task:
        return task_of(memory, train=DATA[kind]())

    check(folder, LimitedMemory(LIMITS), make)


@pytest.mark.slow("trains runs of each kind")
def test_shuffle_buffer_is_read_again(folder):
    def make(memory: LimitedMemory) -> surestep.Task:
        return task_of(memory, train=Stream())

    check(folder, LimitedMemory(LIMITS), make, data={"shuffle_buffer": 20})


@pytest.mark.slow("trains runs of each kind")
@pytest.mark.parametrize("place", ["transform", "backward"])
def test_transform_gets_the_batch_as_it_was_read(folder, place):
    def make(memory: LimitedMemory) -> surestep.Task:
        return task_of(memory, batch_transform=noisy_transform(memory))

    limits = LIMITS if place == "backward" else {3: 0, 7: 0}
    sizes = SIZES if place == "backward" else HALVED
    check(folder, LimitedMemory(limits, place), make, sizes)


MORE: dict[str, dict[str, Any]] = {
    "fp16": {"precision": "fp16", "scaler": {"init_scale": 2.0**10, "growth_interval": 2}},
    "average": {"average": {"kind": "ema", "decay": 0.9}},
    "activation checkpointing": {"activation_checkpointing": "inner"},
    "foreach": {"optim": {"name": "adamw", "lr": 0.01, "implementation": "foreach"}},
    "on_nonfinite": {"on_nonfinite": "skip"},
}


@pytest.mark.parametrize("option", ["fp16", *map(slow, [*MORE][1:])])
@pytest.mark.parametrize("place", ["clipping", slow("backward")])
def test_any_option_takes_the_step_again(folder, monkeypatch, option, place):
    memory = LimitedMemory(LIMITS if place == "backward" else {3: 0, 7: 0}, place)
    norm = private.foreach_norm

    def foreach_norm(*args: Any) -> Any:
        memory.use_once("clipping")
        return norm(*args)

    monkeypatch.setattr(private, "foreach_norm", foreach_norm)
    check(folder, memory, task_of, SIZES if place == "backward" else HALVED, **MORE[option])


def check_generators(folder: Folder) -> None:
    """Compare numpy's and Python's generators after a step that drew from them and ran out."""
    states = []
    for memory in (LimitedMemory({3: 8}), LimitedMemory({})):
        task = task_of(memory, net=LateDraws)
        with session_of(task, folder(), callbacks=[memory], **OPTIONS, **FIT) as session:
            np.random.seed(0)
            random.seed(0)
            for result in session.steps():
                if result.step == 3:
                    break
            states.append((np.random.rand(), random.random()))
    assert states[0] == states[1]


def test_generators_of_the_program_are_as_after_a_step_that_fits(folder):
    check_generators(folder)
