"""Law 2 for every sampler and transform: a run stopped within an epoch and resumed.

The data draws from three generators, so loading must resume at its position too, with any number
of workers.
"""

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

import surestep
from surestep import batch_transforms, samplers
from tests.laws.support.tasks import (
    Augmented,
    assert_moved,
    assert_same,
    rows,
    session_of,
    snapshot,
    train,
    with_dropout,
)

OPTIONS = {"max_steps": 14, "micro_batch_size": 5}
SAMPLES = 44
LABELS = rows(SAMPLES)[1]


def weighted_loader(workers: int) -> DataLoader:
    sampler = WeightedRandomSampler(torch.arange(1.0, SAMPLES + 1), SAMPLES)
    return DataLoader(Augmented(), 9, sampler=sampler, num_workers=workers)


def jittered(inputs, targets, generator):
    drawn = torch.randn(inputs.shape, generator=generator) + random.random() + np.random.rand()
    return inputs + 0.1 * drawn.float(), targets


PARTS: dict[str, Callable[[], dict]] = {
    "shuffled": lambda: {"sampler": samplers.shuffled()},
    "sequential": lambda: {"sampler": samplers.sequential()},
    "weighted": lambda: {"sampler": samplers.weighted(torch.arange(1.0, SAMPLES + 1))},
    "balanced": lambda: {"sampler": samplers.balanced(LABELS)},
    "by length": lambda: {"sampler": samplers.by_length(torch.arange(SAMPLES) % 13, window=2)},
    "mixed": lambda: {
        "train": {"a": Augmented(17), "b": rows(30)},
        "sampler": samplers.mixture({"a": 0.4, "b": 0.6}, SAMPLES),
    },
    "own": lambda: {"sampler": samplers.custom(lambda seed, epoch: torch.randperm(SAMPLES))},
    "mixup": lambda: {"batch_transform": batch_transforms.mixup(0.4, classes=3)},
    "own transform": lambda: {"batch_transform": jittered},
    "sampler": lambda: {"train": weighted_loader(0), "batch_size": None},
}


def task_of(parts: dict, seed: int = 1) -> surestep.Task:
    torch.manual_seed(seed)
    model = with_dropout() if seed == 1 else with_dropout().apply(_other)
    kept = {name: value for name, value in parts.items() if name != "batch_size"}
    return surestep.Task(
        **{"model": model, "loss": nn.CrossEntropyLoss(), "train": Augmented()} | kept
    )


def _other(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight)


@cache
def whole(name: str) -> dict[str, torch.Tensor]:
    """Return the end of a run that nothing stops and that has no workers."""
    size = {} if name == "sampler" else {"batch_size": 9, "data": {"num_workers": 0}}
    return snapshot(train(task_of(PARTS[name]()), None, **OPTIONS | size))


def check_order(
    folder,
    name: str,
    *,
    stop_at: int = 8,
    workers: tuple[int, int] = (0, 0),
    expected: dict[str, torch.Tensor] | None = None,
) -> None:
    """Stop after some steps (5 an epoch), resume in a model with other weights, and compare."""
    size = {} if name == "sampler" else {"batch_size": 9}
    first, second = ({**OPTIONS, **size, "data": {"num_workers": count}} for count in workers)
    if name == "sampler":
        first, second = dict(OPTIONS), dict(OPTIONS)
    expected = expected or whole.__wrapped__(name)
    run = folder()
    start = PARTS[name]()
    if name == "sampler":
        start["train"] = weighted_loader(workers[0])
    with session_of(task_of(start), run, **first) as session:
        for result in session.steps():
            if result.step == stop_at:
                session.save()
                half = snapshot(session)
                break
    again = PARTS[name]()
    if name == "sampler":
        again["train"] = weighted_loader(workers[1])
    with session_of(task_of(again, seed=2), run, **second) as session:
        assert_same(half, snapshot(session))
        assert [result.step for result in session.steps()] == list(range(stop_at + 1, 15))
    assert_same(expected, snapshot(session))
    assert_moved(half, snapshot(session))


@pytest.mark.parametrize("name", PARTS)
def test_resumed_run_equals_an_uninterrupted_run(folder, name):
    check_order(folder, name, expected=whole(name))


@pytest.mark.parametrize("workers", [(0, 1), (2, 0)])
@pytest.mark.parametrize("name", ["weighted", "mixed", "sampler"])
def test_resume_with_a_different_number_of_workers(folder, name, workers):
    check_order(folder, name, workers=workers, expected=whole(name))


def test_resume_at_the_end_of_an_epoch(folder):
    check_order(folder, "mixed", stop_at=10, expected=whole("mixed"))
