"""Laws 2, 3 and 4 for models and losses that draw from the global generators of numpy or Python.

The numbers of a step follow from its position: a resumed run draws them again, and callbacks,
evaluations and code between steps do not change them. The caller's generators are not changed.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.engine.rng import GlobalGenerators, derive_seed
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot, train

Folder = Callable[[], Path]
OPTIONS = {"max_steps": 8, "batch_size": 9, "micro_batch_size": 5, "seed": 7}
SOURCES: dict[str, Callable[[], float]] = {
    "numpy": lambda: float(np.random.rand()),
    "numpy, gaussian": lambda: float(
        np.random.randn()
    ),  # draws in pairs and stores the second number
    "numpy, 624 words": lambda: float(np.random.rand(312).mean()),  # wraps to the same position
    "python": lambda: random.random(),
    "python, gaussian": lambda: random.gauss(0, 1),
    "both": lambda: random.random() + float(np.random.rand()),
}


class Noisy(nn.Module):
    """Scales its hidden layer by a random number from a given step on, in training or always."""

    def __init__(self, draw: Callable[[], float], *, begins: int = 0, evaluates: bool = False):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm, self.last = nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.draw, self.begins, self.evaluates = draw, begins, evaluates

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        if self.training:
            self.calls += 1
        if (self.training and self.calls > self.begins) or self.evaluates:
            x = x * (1 + self.draw())
        return self.last(x.relu())


def noisy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    scale = 1 + (np.random.rand() + random.random() if outputs.requires_grad else 0)
    return nn.functional.cross_entropy(outputs, targets) * scale


def task_of(model: nn.Module, loss: Any = None, **parts: Any) -> surestep.Task:
    return surestep.Task(model, loss or nn.CrossEntropyLoss(), rows(44), val=rows(20), **parts)


def disturb() -> None:
    """Draw as other code of the program may between steps."""
    np.random.randn(3), random.gauss(0, 1), np.random.rand(7), random.random()


def check_draws(folder: Folder, make: Callable[[], surestep.Task], **more: Any) -> None:
    """Compare a run with one that is disturbed, evaluated, stopped and resumed."""
    options = {**OPTIONS, **more}
    random.seed(0)  # also drops the second of a pair of gaussians
    whole = snapshot(train(make(), folder(), **options))
    run = folder()
    for end in (5, None):
        disturb()
        with session_of(make(), run, **options) as session:
            for result in session.steps():
                disturb()
                if result.step in (1, 4, 5, 7):
                    session.evaluate()
                if result.step == end:
                    session.save()
                    break
    assert_same(whole, snapshot(session))


def early_draws() -> surestep.Task:
    return task_of(Noisy(SOURCES["numpy"]))


def late_draws() -> surestep.Task:
    return task_of(Noisy(SOURCES["numpy"], begins=5))


@pytest.mark.parametrize("begins", [0, 1, 5, 12], ids="from micro-batch {}".format)
@pytest.mark.parametrize("source", SOURCES)
def test_draws_of_a_model_follow_from_the_position(folder, source, begins):
    check_draws(folder, lambda: task_of(Noisy(SOURCES[source], begins=begins)))


@pytest.mark.parametrize("begins", [0, 5, 6, 12], ids="from micro-batch {}".format)
def test_buffers_change_once_in_a_step_that_is_computed_again(folder, begins):
    """The first draw makes the step start again with seeded generators."""
    model = Noisy(SOURCES["both"], begins=begins)
    train(task_of(model), folder(), **OPTIONS)
    assert int(model.calls) == int(model.norm.num_batches_tracked) == 2 * OPTIONS["max_steps"]


class DrawsOneOfAPair(surestep.Callback):
    """Draw a gaussian after the second step: another one is stored for the next call."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def on_step(self, state, result):
        if result.step == 2:
            self.draw()


@pytest.mark.parametrize("source", ["numpy, gaussian", "python, gaussian"])
def test_gaussian_that_a_callback_stored_is_not_drawn_by_the_model(folder, source):
    draw, results = SOURCES[source], []
    for callbacks in ([], [DrawsOneOfAPair(draw)]):
        random.seed(0), np.random.seed(0)  # drops a gaussian that is stored already
        task = task_of(Noisy(draw, begins=5))
        options = OPTIONS | {"micro_batch_size": 9, "callbacks": callbacks}
        results.append(snapshot(train(task, folder(), **options)))
    assert_same(*results)


def test_draws_of_a_loss_follow_from_the_position(folder):
    check_draws(folder, lambda: task_of(Noisy(lambda: 0.0), noisy_loss))


def test_draws_of_a_manual_step_follow_from_the_position(folder):
    def step(manual_step: Any) -> None:
        for micro in manual_step.micro_batches():
            manual_step.backward(noisy_loss(manual_step.model(*micro.args), micro.targets), micro)
        manual_step.step("model")

    check_draws(folder, lambda: task_of(Noisy(SOURCES["both"]), step=step))


def test_draws_within_lbfgs_follow_from_the_position(folder):
    optim = {"name": "lbfgs", "max_iter": 3}
    check_draws(folder, lambda: task_of(Noisy(SOURCES["both"])), optim=optim)


class Scaled(nn.Module):
    """Scales by a random number in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        noise = np.random.randn() + random.random() if self.training else 0.0
        return self.linear(x) * (1 + torch.full_like(x, noise))  # a tensor: it is recomputed


def test_recomputed_activations_see_the_same_draws(folder):
    def end(choice: str) -> dict[str, Tensor]:
        model = nn.Sequential(Scaled(), nn.Tanh(), Scaled(), nn.Linear(10, 3))
        options = {**OPTIONS, "activation_checkpointing": choice}
        return snapshot(train(task_of(model), folder(), **options))

    assert_same(end("0 2"), end("off"))


def test_draws_equal_those_of_a_plain_loop(folder):
    model, (x, y) = Noisy(SOURCES["both"]), rows(44)
    order = torch.randperm(44, generator=torch.Generator().manual_seed(derive_seed("order", 7, 0)))
    total = 0.0
    for position in (0, 5):
        seed = derive_seed("model", 7, 0, position)
        np.random.seed(derive_seed("numpy", seed) % 2**32)
        random.seed(derive_seed("python", seed))
        part = order[position : min(position + 5, 9)]
        loss = nn.functional.cross_entropy(model(x[part]), y[part], reduction="sum")
        total += loss.item()
    with session_of(task_of(Noisy(SOURCES["both"])), folder(), **OPTIONS) as session:
        result = next(iter(session.steps()))
    assert float(result.loss) == pytest.approx(total / 9, rel=1e-6)


def gaussians() -> float:
    return random.gauss(0, 1) + float(np.random.randn())


@pytest.mark.parametrize("draw", [lambda: 0.0, SOURCES["both"], gaussians])
@pytest.mark.parametrize("begins", [0, 2, 5], ids="from micro-batch {}".format)
def test_generators_of_the_caller_are_restored(folder, draw, begins):
    model = Noisy(draw, begins=begins, evaluates=not begins)
    with session_of(task_of(model), folder(), **OPTIONS) as session:
        random.seed(3), np.random.seed(3)
        expected = [random.gauss(0, 1) for _ in range(4)], np.random.rand(4).tolist()
        random.seed(3), np.random.seed(3)
        found: tuple[list[float], list[float]] = ([], [])
        for result in session.steps():
            found[0].append(random.gauss(0, 1))
            found[1].append(np.random.rand())
            session.evaluate()
            if result.step == 4:
                break
    assert found == expected


def test_every_evaluation_draws_the_same_numbers(folder):
    with session_of(
        task_of(Noisy(SOURCES["both"], evaluates=True)), folder(), **OPTIONS
    ) as session:
        first = session.evaluate()
        disturb()
        assert session.evaluate() == first


@pytest.mark.parametrize("begins", [0, 12])
def test_generators_are_not_seeded_if_nothing_draws(folder, monkeypatch, begins):
    counts: list[int] = []
    own = GlobalGenerators.seed
    monkeypatch.setattr(
        GlobalGenerators, "seed", lambda self, seed: (counts.append(1), own(self, seed))[0]
    )
    train(task_of(Noisy(lambda: 0.0)), folder(), **OPTIONS)
    assert len(counts) == 2  # the micro-batches of the first step, in which draws are detected
    counts.clear()
    train(task_of(Noisy(SOURCES["numpy"], begins=begins)), folder(), **OPTIONS)
    assert len(counts) == (16 if begins == 0 else 2 + 4)
