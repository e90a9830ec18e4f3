"""Metrics that draw, that are made of other metrics, or are of several heads; many early stops."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.wrappers import MultitaskWrapper

import surestep
from surestep.base.errors import Preempted
from tests.twice.compare import assert_same, plain_config, prepare

G = torch.Generator().manual_seed(11)
X = torch.randn(67, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (67,), generator=G)
SETS = {"a": (X[:20], Y[:20]), "b": (X[20:31], Y[20:31])}


class PauseAt(surestep.Callback):
    """Pauses after some steps."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def on_step(self, state: Any, result: Any) -> Any:
        return surestep.Request.PAUSE if result.step in self.steps else None


class Noisy(nn.Module):
    """Draws from the generators of torch and from its own ones, in evaluations too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(4, 3).double()
        self.own, self.numpy = torch.Generator().manual_seed(5), np.random.default_rng(3)
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.batches += self.training
        found = self.last(x)
        found = found + 0.1 * torch.randn(found.shape, generator=self.own, dtype=found.dtype)
        noise = self.numpy.normal(size=tuple(found.shape))
        return found + 0.1 * torch.randn_like(found) + 0.1 * torch.from_numpy(noise)


class Resampled:
    """The accuracy of samples that are drawn again from three generators."""

    def __init__(self) -> None:
        self.own, self.numpy = torch.Generator().manual_seed(1), np.random.default_rng(2)
        self.reset()

    def reset(self) -> None:
        self.right: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.right.append((outputs.argmax(1) == targets).double())

    def compute(self) -> dict[str, Tensor]:
        right = torch.cat(self.right)
        drawn = {
            "own": torch.randint(len(right), (99,), generator=self.own),
            "numpy": torch.from_numpy(self.numpy.integers(len(right), size=99)),
            "torch": torch.randint(len(right), (99,)),
        }
        return {name: right[rows].mean() for name, rows in drawn.items()}


def open_noisy(callbacks: Any, run: str) -> surestep.Trainer:
    task = surestep.Task(
        Noisy(), nn.CrossEntropyLoss(), train=(X, Y), val=SETS, metrics={"again": Resampled()}
    )
    config = plain_config(
        max_steps=13,
        batch_size=7,
        validation={"every": "2 steps", "weights": "both"},
        average={"kind": "ema", "decay": 0.9},
    )
    return surestep.Trainer(task, config, run=run, callbacks=callbacks)


def evaluations(run: surestep.Run) -> dict[int, dict[str, Any]]:
    found = (event for event in run.events() if event["event"] == "evaluation")
    return {event["step"]: event["metrics"] for event in found}


def fit_in_parts(make: Any, pauses: list[int]) -> surestep.Run:
    for _ in pauses:
        with pytest.raises(Preempted):
            make([PauseAt(pauses)]).fit()
    return make([PauseAt(pauses)]).fit()


@pytest.mark.parametrize("pauses", [[3, 8], [2, 6, 7]])
def test_metrics_that_draw_are_the_same_in_parts_and_for_the_best_checkpoint(pauses) -> None:
    whole = open_noisy([], "whole").fit()
    parts = fit_in_parts(lambda callbacks: open_noisy(callbacks, "parts"), pauses)
    assert_same(evaluations(whole), evaluations(parts), exact=True)
    again = open_noisy([], "parts")
    best = parts.best.metrics
    found = again.evaluate("a")
    again.close()
    assert_same({name: best[name] for name in found}, found, exact=True)


def test_metric_that_is_computed_from_another_counts_each_sample_once() -> None:
    torch.manual_seed(0)
    net, accuracy = nn.Linear(4, 3).double(), MulticlassAccuracy(3, average="micro")
    metrics = {"right": accuracy, "wrong": 1 - accuracy}
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y), val=SETS, metrics=metrics)
    ours = prepare(task, plain_config(max_steps=1, batch_size=7)).evaluate()
    for name, (x, y) in SETS.items():
        plain = float((net(x).argmax(1) == y).float().mean())
        assert ours[f"{name}/right"] == pytest.approx(plain, abs=1e-6)
        assert ours[f"{name}/wrong"] == pytest.approx(1 - plain, abs=1e-6)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.size = nn.Linear(4, 3).double(), nn.Linear(4, 1).double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"kind": self.kind(x), "size": self.size(x)}


def test_wrapper_of_metrics_for_several_heads_equals_one_update() -> None:
    size = X[:, :1] * 2
    data = list(
        zip(
            X, [{"kind": kind, "size": one} for kind, one in zip(Y, size, strict=True)], strict=True
        )
    )
    parts = {"kind": MulticlassAccuracy(3, average="micro"), "size": MeanSquaredError()}
    net = TwoHeads()
    task = surestep.Task(
        net,
        {"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()},
        train=data,
        val=data[:23],
        metrics={"of": MultitaskWrapper(parts)},
    )
    ours = prepare(task, plain_config(max_steps=1, batch_size=4)).evaluate()
    with torch.no_grad():
        outputs = net(X[:23])
    right = float((outputs["kind"].argmax(1) == Y[:23]).double().mean())
    square = float(functional.mse_loss(outputs["size"], size[:23]))
    assert ours["val/of_kind"] == pytest.approx(right, abs=1e-6)
    assert ours["val/of_size"] == pytest.approx(square, rel=1e-5)


class ByStep:
    """Has a given value for each number of batches that the model was trained on."""

    def __init__(self, net: Noisy, values: list[float]) -> None:
        self.net, self.values = net, values

    def reset(self) -> None: ...

    def update(self, outputs: Tensor, targets: Tensor) -> None: ...

    def compute(self) -> float:
        return self.values[int(self.net.batches)]


def by_hand(values: list[float], steps: list[int], patience: int, delta: float, mode: str) -> Any:
    """Return the step of the last evaluation and the step of the best."""
    sign = 1 if mode == "min" else -1
    reference, waited = math.inf, 0
    for step in steps:
        value = sign * values[step]
        is_better = value < reference - delta
        reference, waited = (value, 0) if is_better else (reference, waited + 1)
        if waited == patience:
            break
    seen = [other for other in steps if other <= step and not math.isnan(values[other])]
    return step, min(seen, key=lambda other: sign * values[other], default=None)


@pytest.mark.parametrize("seed", range(6))
def test_random_values_stop_and_choose_the_best_as_by_hand(seed: int) -> None:
    draw = random.Random(seed)
    values = [draw.choice([0.1, 0.2, 0.25, 0.25, 0.4, 0.6, math.nan, -0.3]) for _ in range(40)]
    values[0] = 0.3
    mode, every, patience = draw.choice(["min", "max"]), draw.choice([1, 2, 3]), draw.choice([2, 3])
    delta, total = draw.choice([0.0, 0.1]), draw.choice([17, 20])
    steps = [0, *(step for step in range(1, total + 1) if step % every == 0 or step == total)]
    last, best = by_hand(values, steps, patience, delta, mode)
    config = plain_config(
        max_steps=total,
        batch_size=7,
        validation={"metric": "m", "mode": mode, "every": every, "on_start": True},
        early_stop={"patience": patience, "min_delta": delta},
        checkpoint={"keep_best": draw.choice([1, 2]), "every": "4 steps"},
    )

    def make(callbacks: Any) -> surestep.Trainer:
        net = Noisy()
        metrics = {"m": ByStep(net, values)}
        task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y), val=SETS, metrics=metrics)
        return surestep.Trainer(task, config, run="run", callbacks=callbacks)

    run = fit_in_parts(make, draw.sample(range(1, last), min(2, last - 1)))
    assert (run.status["step"], run.best.step) == (last, best)
    assert list(evaluations(run)) == [step for step in steps if step <= last]
