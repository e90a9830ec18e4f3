"""Law 3: a run equals a plain PyTorch script.

Bit for bit on CPU in fp32 if the script uses the documented seeds and arithmetic (see
`plain.exact_loop`), and within 1e-6 of the usual loop with torch's schedulers.
"""

import ast
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import surestep
from tests.laws.support import plain
from tests.laws.support.loss_cases import tagger, tokens
from tests.laws.support.tasks import (
    Augmented,
    assert_same,
    mlp,
    rows,
    session_of,
    snapshot,
    train,
    with_batchnorm,
    with_dropout,
)

Folder = Callable[[], Path]
STEPS = 20
COSINE = {"name": "cosine", "warmup": "5 steps", "min_lr_ratio": 0.1}
ADAMW = ({"lr": 3e-3, "weight_decay": 0.1}, partial(plain.adamw, lr=3e-3))
SGD = (
    {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    partial(plain.sgd, lr=0.1, momentum=0.9, nesterov=True),
)
OPTIMIZERS = pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["adamw", "sgd"])


def test_plain_scripts_import_nothing_from_surestep():
    tree = ast.parse(Path(plain.__file__).read_text())
    named = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert {name.split(".")[0] for name in named} <= {"collections", "hashlib", "torch"}


def written_out(steps_taken: int) -> float:
    """Return COSINE's factor by formula: five warmup steps, then decay to a tenth."""
    if steps_taken < 5:
        return (1 + 4 * steps_taken / 5) / 5
    return 0.1 + 0.9 * (1 + math.cos(math.pi * ((steps_taken - 5) / (STEPS - 5)))) / 2


def check_exact(folder: Folder, micro_batch_size: int = 5, optimizer=ADAMW) -> None:
    """Compare weights, and the losses in the run folder, bit for bit."""
    options, make = optimizer
    exact, ours = with_dropout(), with_dropout()
    losses = plain.exact_loop(
        exact,
        partial(functional.cross_entropy, reduction="sum"),
        *rows(),
        steps=STEPS,
        batch_size=16,
        micro_batch_size=micro_batch_size,
        make_optimizer=make(fused=True),
        schedule=lambda optimizer: LambdaLR(optimizer, written_out),
        max_grad_norm=0.5,
        weight_decay=0.1,
        seed=7,
    )
    session = train(
        surestep.Task(ours, nn.CrossEntropyLoss(), rows()),
        folder(),
        max_steps=STEPS,
        batch_size=16,
        micro_batch_size=micro_batch_size,
        seed=7,
        max_grad_norm=0.5,
        optim=options,
        schedule=COSINE,
    )
    pairs = zip(exact.parameters(), ours.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    recorded = [event["loss"] for event in session.run.events() if event["event"] == "steps"]
    assert [loss for losses in recorded for loss in losses] == losses


@OPTIMIZERS
@pytest.mark.parametrize("micro_batch_size", [16, 8, 5])
def test_run_equals_the_script_with_the_same_arithmetic_bit_for_bit(
    folder, micro_batch_size, optimizer
):
    check_exact(folder, micro_batch_size, optimizer)


def check_usual(folder: Folder, given: Callable, optimizer=ADAMW, model=mlp, data=rows) -> None:
    """Compare with the usual mean-loss loop: DataLoader, torch's optimizer, clip and scheduler."""
    options, make = optimizer
    usual, ours = model(), model()
    plain.usual_loop(
        usual,
        nn.CrossEntropyLoss(),
        plain.shuffled(TensorDataset(*data()), batch_size=16),
        steps=STEPS,
        max_grad_norm=0.5,
        weight_decay=0.1,
        make_optimizer=make(),
        schedule=plain.cosine(5, STEPS, floor=0.1),
    )
    train(
        surestep.Task(ours, nn.CrossEntropyLoss(), given(*data())),
        folder(),
        max_steps=STEPS,
        batch_size=16,
        max_grad_norm=0.5,
        optim=options,
        schedule=COSINE,
    )
    assert plain.distance(usual, ours) <= 1e-6


GIVEN = {
    "tensors": lambda x, y: (x, y),
    "dict": lambda x, y: {"input": x, "label": y},
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
    "dataset": TensorDataset,
    "list": lambda x, y: list(zip(x, y, strict=True)),
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True),
}


@OPTIMIZERS
@pytest.mark.parametrize("given", GIVEN)
def test_run_equals_the_usual_loop_for_every_kind_of_data(folder, given, optimizer):
    check_usual(folder, GIVEN[given], optimizer)


def test_embeddings_and_norms_have_no_weight_decay(folder):
    check_usual(folder, GIVEN["tensors"], model=partial(tagger, torch.float32), data=tokens)


def test_model_built_by_a_function_starts_as_after_its_derived_seed(folder):
    def build() -> nn.Module:
        return nn.Linear(10, 3)

    torch.manual_seed(surestep.derive_seed("build", 5))
    expected = build()
    torch.manual_seed(0)
    task = surestep.Task(build, nn.CrossEntropyLoss(), rows())
    with session_of(task, folder(), max_steps=1, seed=5) as session:
        assert torch.equal(session.model.weight, expected.weight)


def lr_of_torch(make: plain.Schedule, steps: int, every: int = 1) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=0.5)
    scheduler, rates = make(optimizer), []
    for step in range(1, steps + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step % every == 0:
            scheduler.step()
    return rates


def truncated_cosine(optimizer):
    return LambdaLR(optimizer, lambda n: max(0.2, (1 + math.cos(math.pi * n / 16)) / 2))


# 55 samples in batches of 16 are 4 steps an epoch; 16 steps are 4 epochs.
SCHEDULES = {
    "constant": ({}, plain.constant, 1),
    "warm-up alone": ({"warmup": "4 steps"}, lambda step: plain.cosine(4, 10**9)(step), 1),
    "cosine": ({"name": "cosine"}, plain.cosine(0, 16), 1),
    "warm-up, cosine": ({"name": "cosine", "warmup": "4 steps"}, plain.cosine(4, 16), 1),
    "a share": ({"name": "cosine", "warmup": "25%"}, plain.cosine(4, 16), 1),
    "an epoch": ({"name": "cosine", "warmup": "1 epoch"}, plain.cosine(4, 16), 1),
    "floor": ({"name": "cosine", "min_lr_ratio": 0.2}, plain.cosine(0, 16, 0.2), 1),
    "floor, clipped": (
        {"name": "cosine", "min_lr_ratio": 0.2, "min_lr_mode": "cut"},
        truncated_cosine,
        1,
    ),
    "by epoch": ({"name": "cosine", "interval": "1 epoch"}, plain.cosine(0, 4), 4),
    "warm-up by epoch": (
        {"name": "cosine", "interval": "1 epoch", "warmup": "2 epochs"},
        plain.cosine(2, 4),
        4,
    ),
}


def check_schedule(folder: Folder, name: str) -> None:
    """Compare the learning rate of each step with torch's scheduler."""
    options, make, every = SCHEDULES[name]
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(), rows())
    optim = {"name": "sgd", "lr": 0.5}
    with session_of(task, folder(), epochs=4, batch_size=16, optim=optim, schedule=options) as s:
        rates = [(result.lr, s.optimizer.param_groups[0]["lr"]) for result in s.steps()]
    assert all(reported == used for reported, used in rates)
    assert [reported for reported, _ in rates] == pytest.approx(
        lr_of_torch(make, 16, every), rel=1e-9
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rate_of_every_step_equals_torchs_scheduler(folder, name):
    check_schedule(folder, name)


def test_schedule_scales_a_custom_optimizer_as_torchs_scheduler_does(folder):
    """A schedule scales the rate of each group, as torch's schedulers do."""
    usual, ours = mlp(), mlp()
    x, y = rows()
    make = partial(torch.optim.RMSprop, lr=1e-3)
    plain.usual_loop(
        usual,
        nn.CrossEntropyLoss(),
        plain.shuffled(TensorDataset(x, y), batch_size=16),
        steps=STEPS,
        weight_decay=0.0,
        make_optimizer=make,
        schedule=lambda optimizer: StepLR(optimizer, step_size=10**6),
    )
    task = surestep.Task(ours, nn.CrossEntropyLoss(), (x, y), optimizer=make)
    train(task, folder(), max_steps=STEPS, batch_size=16)
    assert plain.distance(usual, ours) <= 1e-6


def test_two_runs_are_equal_bit_for_bit(folder):
    a, b = (
        train(
            surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), Augmented()),
            folder(),
            max_steps=12,
            batch_size=8,
        )
        for _ in range(2)
    )
    assert_same(snapshot(a), snapshot(b))
