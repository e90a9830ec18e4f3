"""Law 1: the same global batch gives the same update for every micro-batch size.

Each case is a loss that returns a mean. The plain loop takes the full batch; surestep splits it
into micro-batches. After twelve steps with a schedule, |a - b| / |a| over all
parameters is at most 1e-6 in fp32 and 1e-12 in fp64.
"""

import copy
import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import surestep
from tests.laws.support import plain
from tests.laws.support.loss_cases import CASES, Case
from tests.laws.support.tasks import (
    assert_moved,
    assert_same,
    mlp,
    rows,
    session_of,
    snapshot,
    train,
    with_batchnorm,
)

Folder = Callable[[], Path]
LIMIT = {torch.float32: 1e-6, torch.float64: 1e-12}
BATCH, STEPS = 16, 12
DTYPES = pytest.mark.parametrize("dtype", LIMIT, ids=["fp32", "fp64"])


@dataclass(frozen=True, eq=False)
class Way:
    """An optimizer and a clip: Config options, and the same in plain torch."""

    options: dict[str, Any]
    max_grad_norm: float
    make_optimizer: plain.MakeOptimizer


# AdamW and clipping hide a wrong factor in the gradient; SGD shows it.
ADAMW = Way({"max_grad_norm": 0.02}, 0.02, plain.adamw())
SGD = Way(
    {"max_grad_norm": "off", "optim": {"name": "sgd", "lr": 0.02, "momentum": 0.9}},
    math.inf,
    plain.sgd(lr=0.02, momentum=0.9),
)


@functools.cache
def unsplit(name: str, dtype: torch.dtype, way: Way, drop_last: bool) -> torch.nn.Module:
    """Train a plain loop on full batches."""
    torch.set_num_threads(1)
    case = CASES[name](dtype)
    model = case.model()
    norms = plain.usual_loop(
        model,
        case.mean_loss,
        plain.shuffled(TensorDataset(*case.data), batch_size=BATCH, drop_last=drop_last),
        steps=STEPS,
        max_grad_norm=way.max_grad_norm,
        weight_decay=0.01 if way is ADAMW else 0.0,
        make_optimizer=way.make_optimizer,
        schedule=plain.cosine(4, STEPS),
    )
    assert way is SGD or min(norms) > way.max_grad_norm, "the clip does not act"
    return model


def check_cut(
    folder: Folder,
    name: str,
    micro_batch_size: int,
    *,
    dtype: torch.dtype = torch.float32,
    way: Way = SGD,
    drop_last: bool = False,
) -> None:
    """Compare a plain loop on full batches with a run that splits them."""
    case = CASES[name](dtype)
    model = case.model()
    train(
        surestep.Task(model, case.mean_loss, case.data, items=case.items),
        folder(),
        max_steps=STEPS,
        batch_size=BATCH,
        micro_batch_size=micro_batch_size,
        schedule={"name": "cosine", "warmup": "4 steps"},
        data={"drop_last": drop_last},
        **way.options,
    )
    assert plain.distance(unsplit(name, dtype, way, drop_last), model) <= LIMIT[dtype]


@DTYPES
@pytest.mark.parametrize("micro_batch_size", [16, 8, 5], ids=["full", "even", "uneven"])
@pytest.mark.parametrize("name", CASES)
def test_split_batch_gives_the_update_of_the_full_batch(folder, name, micro_batch_size, dtype):
    check_cut(folder, name, micro_batch_size, dtype=dtype, way=ADAMW)


@DTYPES
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_mean_over_the_items(folder, name, dtype):
    check_cut(folder, name, 5, dtype=dtype, way=SGD)


@DTYPES
@pytest.mark.parametrize("drop_last", [True, False])
def test_last_smaller_batch_is_weighted_by_its_items(folder, drop_last, dtype):
    check_cut(folder, "masked tokens, weighted", 6, dtype=dtype, drop_last=drop_last)


@pytest.mark.parametrize("micro_batch_size", [1, 4])
def test_first_micro_batch_may_be_fully_masked(folder, micro_batch_size):
    check_cut(folder, "first four masked", micro_batch_size)


@DTYPES
def test_custom_uneven_batches_are_one_global_batch(folder, dtype):
    usual, ours = mlp(dtype), mlp(dtype)
    x, y = rows(16 * STEPS, dtype)
    y[::3] = -100
    loss = torch.nn.CrossEntropyLoss()
    whole = list(zip(x.split(16), y.split(16), strict=True))
    plain.usual_loop(usual, loss, iter(whole), steps=STEPS, max_grad_norm=0.02)
    task = surestep.Task(ours, loss, (x, y))
    with session_of(task, folder(), max_steps=STEPS, max_grad_norm=0.02) as session:
        for xs, ys in whole:
            parts = zip(xs.split([3, 9, 4]), ys.split([3, 9, 4]), strict=True)
            assert bool(session.train_step(list(parts)).took_step)
    assert plain.distance(usual, ours) <= LIMIT[dtype]


def test_named_losses_are_split_like_their_sum(folder):
    def parts(outputs, targets):
        entropy = torch.nn.functional.cross_entropy(outputs, targets)
        return {"entropy": entropy, "size": 0.1 * outputs.pow(2).mean()}

    case = CASES["cross-entropy"](torch.float32)
    summed = Case(
        case.model, lambda outputs, targets: sum(parts(outputs, targets).values()), case.data
    )
    usual, ours = case.model(), case.model()
    batches = plain.shuffled(TensorDataset(*case.data), batch_size=BATCH)
    plain.usual_loop(usual, summed.mean_loss, batches, steps=STEPS)
    train(
        surestep.Task(ours, parts, case.data),
        folder(),
        max_steps=STEPS,
        batch_size=BATCH,
        micro_batch_size=5,
    )
    assert plain.distance(usual, ours) <= 1e-6


def test_items_of_a_dict_batch_are_counted_by_a_custom_function(folder):
    """The function receives a batch as the dataset returns it."""
    case = CASES["callable over its own count"](torch.float32)
    x, y = case.data
    ours = case.model()
    task = surestep.Task(
        ours,
        case.mean_loss,
        {"input": x, "label": y},
        items=lambda batch: (batch["label"] > 0).sum(),
    )
    train(
        task,
        folder(),
        max_steps=STEPS,
        batch_size=BATCH,
        micro_batch_size=5,
        schedule={"name": "cosine", "warmup": "4 steps"},
        **SGD.options,
    )
    usual = unsplit("callable over its own count", torch.float32, SGD, False)
    assert plain.distance(usual, ours) <= 1e-6


class Jittered(Dataset):
    """A dataset with random augmentation."""

    def __init__(self) -> None:
        self.x, self.y = rows(48)

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index):
        return self.x[index] * (1 + 0.5 * random.random()), self.y[index]


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(40))], ids=["own", "part"])
def test_augmentation_does_not_depend_on_the_micro_batch_size(folder, wrap):
    whole, cut = (
        train(
            surestep.Task(mlp(), torch.nn.CrossEntropyLoss(), wrap(Jittered())),
            folder(),
            max_steps=6,
            batch_size=16,
            micro_batch_size=micro,
        ).model
        for micro in (16, 5)
    )
    assert plain.distance(whole, cut) <= 1e-6


def check_nothing_to_learn(folder: Folder, optim: dict[str, Any] | None = None) -> None:
    """A batch whose targets are all ignored is counted and updates nothing."""
    x, y = rows(32)
    y[plain.order_of(32, 0, 0)[16:24]] = -100  # the third of four batches
    task = surestep.Task(with_batchnorm(), torch.nn.CrossEntropyLoss(), (x, y))
    taken = []
    with session_of(
        task,
        folder(),
        epochs=1,
        batch_size=8,
        schedule={"name": "cosine"},
        optim=optim or {"lr": 0.1},
    ) as session:
        for result in session.steps():
            taken.append((bool(result.took_step), copy.deepcopy(snapshot(session))))
    assert [took for took, _ in taken] == [True, True, False, True]
    assert_same(taken[1][1], taken[2][1])
    assert_moved(taken[2][1], taken[3][1])
    assert session.state.counts.no_items == 1
    assert session.state.progress.step == 4


MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}


@pytest.mark.parametrize("optim", [None, MOMENTUM], ids=["adamw", "sgd"])
def test_batch_without_items_updates_nothing_and_is_counted(folder, optim):
    check_nothing_to_learn(folder, optim)
