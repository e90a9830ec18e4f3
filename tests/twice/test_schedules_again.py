"""Rates, momenta and weight decays that the user's code sets, and schedules of odd intervals."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as L

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

X = torch.randn(53, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
TRAIN, VAL = (X[:43], Y[:43]), (X[43:], Y[43:])
LR = 0.05
Make = Callable[[torch.optim.Optimizer], Any]
Change = Callable[[int, list[dict[str, Any]]], None]
tensor = partial(torch.tensor, dtype=torch.float64)
OPTIM = {"lr": LR, "momentum": 0.9}


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)


def loop(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    before: Callable[[int], None],
    after: Callable[[int], None] = lambda step: None,
    epochs: int = 3,
) -> list[Any]:
    """Train by hand; call functions with the number of the step, from 0, before and after it."""
    values = []
    for _ in range(epochs):
        for x, y in in_batches(7, *TRAIN):
            step = len(values)
            before(step)
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            group = optimizer.param_groups[0]
            values.append([group["lr"], group.get("momentum", 0.0), group["weight_decay"]])
            after(step)
    return [tensor(values), weights(net)]


def run(
    change: Change = lambda step, groups: None,
    *,
    stops: tuple[int, ...] = (),
    task: dict[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Train in a loop over the steps, which changes the groups after each; resume after `stops`."""
    options = {"epochs": 3, "batch_size": 7} | options
    options["optim"] = OPTIM | options.get("optim", {})
    values = []
    for stop in (*stops, 0):
        net = make_net()
        made = surestep.Task(net, nn.MSELoss(), train=TRAIN, **task or {})
        session = prepare(made, plain_config(**options), run="run")
        for result in session.steps():
            group = session.optimizer.param_groups[0]
            values.append([result.lr, group.get("momentum", 0.0), group["weight_decay"]])
            assert result.lr == group["lr"]
            change(result.step, session.optimizer.param_groups)
            if result.step == stop:
                session.save()
                break
        session.close()
    return [tensor(values), weights(net)]


@pytest.mark.parametrize("stops", [(), (5,), (6, 11)])
def test_momentum_alone_that_a_loop_sets_is_no_longer_cycled(stops: tuple[int, ...]) -> None:
    net = make_net()
    optimizer = sgd(net)
    scheduler = L.OneCycleLR(optimizer, LR, total_steps=21)

    def after(step: int) -> None:
        scheduler.step()
        if step >= 4:
            optimizer.param_groups[0]["momentum"] = 0.5

    def change(step: int, groups: Any) -> None:
        if step == 5:
            for group in groups:
                group["momentum"] = 0.5

    plain = loop(net, optimizer, lambda step: None, after)
    assert_same(plain, run(change, stops=stops, schedule="one_cycle"))


@pytest.mark.parametrize("stops", [(), (8,), (1, 9, 13)])
def test_rate_momentum_and_decay_that_a_loop_sets_at_each_step_are_used(stops) -> None:
    """A schedule of the user's own, written into the groups; a momentum that rises as well."""

    def write(step: int, groups: Any) -> None:
        for group in groups:
            group["lr"] = LR * (1 + math.sin(step))
            group["momentum"] = 1 - 0.5 / (1 + step)
            group["weight_decay"] = 0.01 * step

    net = make_net()
    optimizer = sgd(net)

    def before(step: int) -> None:
        if step:
            write(step, optimizer.param_groups)

    plain = loop(net, optimizer, before)
    assert_same(plain, run(write, stops=stops))


INTERVALS: dict[str, tuple[dict[str, Any], Make]] = {
    "cyclic": (
        {"name": "cyclic", "step_size_up": "2 epochs", "step_size_down": "1 epoch"}
        | {"min_lr": 0.01, "cycle_momentum": True},
        lambda o: L.CyclicLR(o, 0.01, LR, step_size_up=2, step_size_down=1),
    ),
    "one cycle": (
        {"name": "one_cycle", "pct_start": 0.4},
        lambda o: L.OneCycleLR(o, LR, total_steps=7, pct_start=0.4),
    ),
    "restarts": (
        {"name": "cosine_restarts", "T_0": "2 epochs", "T_mult": 2},
        lambda o: L.CosineAnnealingWarmRestarts(o, 2, 2),
    ),
    "power": (
        {"name": "polynomial", "power": 2.0},
        lambda o: L.PolynomialLR(o, 7, power=2.0),
    ),
    "line to a floor": (
        {"name": "linear", "min_lr_ratio": 0.1},
        lambda o: L.LinearLR(o, 1.0, 0.1, 7),
    ),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_cycles_of_epochs_change_rate_and_momentum_once_an_epoch(name: str) -> None:
    said, make = INTERVALS[name]
    net = make_net()
    optimizer = sgd(net)
    scheduler = make(optimizer)
    plain = loop(
        net, optimizer, lambda step: None, lambda step: step % 7 == 6 and scheduler.step(), 7
    )
    assert_same(plain, run(schedule=said | {"interval": "1 epoch"}, epochs=7))


@pytest.mark.parametrize("name", ["cyclic", "restarts"])
def test_cycles_of_three_steps_change_rate_and_momentum_every_third_step(name: str) -> None:
    """49 steps are 16 intervals of three and one of one step."""
    said, make = INTERVALS[name]
    said = {
        key: f"{3 * int(value.split()[0])} steps" if "epoch" in str(value) else value
        for key, value in said.items()
    }
    net = make_net()
    optimizer = sgd(net)
    scheduler = make(optimizer)
    plain = loop(
        net, optimizer, lambda step: None, lambda step: step % 3 == 2 and scheduler.step(), 7
    )
    assert_same(plain, run(schedule=said | {"interval": "3 steps"}, epochs=7))


def plateau_by_hand(
    scores: Callable[[int], float], after: Callable[[int, Any], None], epochs: int, **how: Any
) -> list[Any]:
    net = make_net()
    optimizer = sgd(net)
    scheduler = L.ReduceLROnPlateau(optimizer, **how)
    evaluations = iter(range(1000))

    def each(step: int) -> None:
        if step % 3 == 2:
            scheduler.step(scores(next(evaluations)))
        after(step, optimizer.param_groups)

    return loop(net, optimizer, lambda step: None, each, epochs)


class Scripted:
    """A metric whose value the test sets before each evaluation."""

    value = 0.0

    def update(self, outputs: Any, targets: Any) -> None:
        """Take no notice."""

    def compute(self) -> float:
        return self.value

    def reset(self) -> None:
        """Keep the value."""


def plateau(
    scores: Callable[[int], float],
    after: Callable[[int, Any], None],
    epochs: int,
    *,
    stops: tuple[int, ...] = (),
    mode: Any = "min",
    **how: Any,
) -> list[Any]:
    values, metric = [], Scripted()
    for stop in (*stops, 0):
        net = make_net()
        task = surestep.Task(net, nn.MSELoss(), train=TRAIN, val=VAL, metrics={"score": metric})
        config = plain_config(
            epochs=epochs,
            batch_size=7,
            optim=OPTIM,
            validation={"metric": "val/score", "mode": mode},
            schedule={"name": "reduce_on_plateau"} | how,
        )
        session = prepare(task, config, run="run")
        for result in session.steps():
            group = session.optimizer.param_groups[0]
            values.append([group["lr"], group["momentum"], group["weight_decay"]])
            if result.step % 3 == 0:
                metric.value = scores(result.step // 3 - 1)
                session.evaluate()
            after(result.step - 1, session.optimizer.param_groups)
            if result.step == stop:
                session.save()
                break
        session.close()
    return [tensor(values), weights(net)]


HOW: dict[str, dict[str, Any]] = {
    "relative": {"factor": 0.5, "patience": 1, "threshold": 0.05},
    "absolute": {"factor": 0.3, "patience": 0, "threshold": 0.2, "threshold_mode": "abs"},
    "cooldown": {"factor": 0.7, "patience": 1, "threshold": 0.0, "cooldown": 2},
    "floor": {"factor": 0.3, "patience": 0, "threshold": 0.3, "min_lr": 0.01},
}


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("first", [0.0, -3.0])
def test_plateau_follows_scores_with_signs_in_both_directions(name, mode, first) -> None:
    """Scores are negative, zero and positive, and one is NaN."""

    def scores(index: int) -> float:
        return math.nan if index == 4 else round(first + 2 * math.sin(1.7 * index), 2)

    how = HOW[name]
    plain = plateau_by_hand(scores, lambda step, groups: None, 7, mode=mode, **how)
    assert len(set(plain[0][:, 0].tolist())) > 2
    assert_same(plain, plateau(scores, lambda step, groups: None, 7, mode=mode, **how))


@pytest.mark.parametrize("stops", [(), (7,), (10, 15)])
def test_rates_that_a_loop_halves_fall_further_on_plateaus(stops: tuple[int, ...]) -> None:
    def scores(index: int) -> float:
        return 1.0 + 0.1 * (index % 2)

    def after(step: int, groups: Any) -> None:
        for group in groups if step in (6, 9, 16) else ():
            group["lr"] *= 0.5

    how = {"factor": 0.7, "patience": 1, "threshold": 0.0}
    plain = plateau_by_hand(scores, after, 3, **how)
    assert_same(plain, plateau(scores, after, 3, stops=stops, **how))


def test_half_epochs_of_three_and_a_half_steps_begin_at_the_next_whole_step() -> None:
    net = make_net()
    optimizer = sgd(net)

    def before(step: int) -> None:
        optimizer.param_groups[0]["lr"] = LR * 0.8 ** math.floor(step / 3.5)

    said = {"name": "exponential", "gamma": 0.8, "interval": "0.5 epochs"}
    assert_same(loop(net, optimizer, before), run(schedule=said))


@pytest.mark.parametrize("stops", [(), (4,), (6, 12)])
@pytest.mark.parametrize("betas", [(0.5, 0.9), (None, 0.95)])
def test_betas_that_a_loop_sets_under_one_cycle_are_used(stops, betas) -> None:
    """Without a first beta, only the second one is set, and the first one cycles on."""
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    scheduler = L.OneCycleLR(optimizer, LR, total_steps=21)

    def after(step: int) -> None:
        scheduler.step()
        if step >= 4:
            group = optimizer.param_groups[0]
            group["betas"] = (betas[0] or group["betas"][0], betas[1])

    def change(step: int, groups: Any) -> None:
        if step == 5:
            for group in groups:
                group["betas"] = (betas[0] or group["betas"][0], betas[1])

    plain = loop(net, optimizer, lambda step: None, after)
    optim = {"name": "adam", "momentum": surestep.NOT_SET}
    assert_same(plain, run(change, stops=stops, schedule="one_cycle", optim=optim))


@pytest.mark.parametrize("kind", ["on_start", "on_batch", "on_backward", "on_log", "on_step"])
def test_rate_and_decay_that_a_hook_sets_are_used_from_then_on(kind: str) -> None:
    """Rates set before the forward pass or the update are those of this step."""

    class Set(surestep.Callback):
        def set(self, state: Any) -> None:
            if kind == "on_start" or state.progress.step in (5, 12):
                for group in state.optimizer.param_groups:
                    group["lr"] = LR / (2 + state.progress.step)
                    group["weight_decay"] = 0.01 * (1 + state.progress.step)

    setattr(Set, kind, lambda self, state, *more: self.set(state))
    net = make_net()
    optimizer = sgd(net)

    def before(step: int) -> None:
        if (kind == "on_start" and step == 0) or (kind != "on_start" and step in (5, 12)):
            optimizer.param_groups[0]["lr"] = LR / (2 + step)
            optimizer.param_groups[0]["weight_decay"] = 0.01 * (1 + step)

    plain = loop(net, optimizer, before)
    found = make_net()
    task = surestep.Task(found, nn.MSELoss(), train=TRAIN)
    config = plain_config(epochs=3, batch_size=7, optim=OPTIM, logging={"every": "1 step"})
    surestep.Trainer(task, config, callbacks=[Set()]).fit()
    assert_same(plain[1], weights(found))


@pytest.mark.parametrize("at", [4, 9])
def test_smaller_peak_of_a_resumed_run_scales_what_is_left_of_the_curve(at: int) -> None:
    """The loop halved the rate before, and the Config has a fifth of the peak after."""
    net = make_net()
    optimizer = sgd(net)

    def before(step: int) -> None:
        factor = (1 + math.cos(math.pi * step / 21)) / 2
        factor *= 0.5 if step >= 3 else 1.0
        optimizer.param_groups[0]["lr"] = LR * factor * (0.2 if step >= at else 1.0)

    plain = loop(net, optimizer, before)
    for peak in (LR, 0.2 * LR):
        found = make_net()
        task = surestep.Task(found, nn.MSELoss(), train=TRAIN)
        config = plain_config(epochs=3, batch_size=7, optim=OPTIM | {"lr": peak}, schedule="cosine")
        session = prepare(task, config, run="run", allow=["optim.lr"])
        for result in session.steps():
            if result.step == 3:
                for group in session.optimizer.param_groups:
                    group["lr"] *= 0.5
            if result.step == at and peak == LR:
                session.save()
                break
        session.close()
    assert_same(plain[1], weights(found))


def test_extended_run_goes_on_at_the_curve_of_its_new_length() -> None:
    net = make_net()
    optimizer = sgd(net)

    def before(step: int) -> None:
        total = 14 if step < 14 else 35
        optimizer.param_groups[0]["lr"] = LR * (1 - step / total)

    plain = loop(net, optimizer, before, epochs=5)
    for epochs in (2, 5):
        found = make_net()
        task = surestep.Task(found, nn.MSELoss(), train=TRAIN)
        config = plain_config(epochs=epochs, batch_size=7, optim=OPTIM, schedule="linear")
        surestep.Trainer(task, config, run="run", allow=["epochs"]).fit()
    assert_same(plain[1], weights(found))


def test_rate_of_a_curvature_search_that_a_loop_sets_is_used() -> None:
    net, values = make_net(), []
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(TRAIN[0]), TRAIN[1])
        loss.backward()
        return loss

    for step in range(9):
        optimizer.param_groups[0]["lr"] = 0.5 * (1 - step / 9) * (0.4 if step >= 4 else 1.0)
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step(closure)
    plain = [tensor(values), weights(net)]

    found, rates = make_net(), []
    task = surestep.Task(found, nn.MSELoss(), train=TRAIN)
    config = surestep.Config(
        epochs=9,
        batch_size=43,
        optim={"name": "lbfgs", "lr": 0.5, "max_iter": 3},
        schedule="linear",
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    session = prepare(task, config)
    for result in session.steps():
        rates.append(result.lr)
        if result.step == 4:
            session.optimizer.param_groups[0]["lr"] *= 0.4
    assert_same(plain, [tensor(rates), weights(found)])


def test_own_batches_follow_a_curve_and_the_rates_that_a_loop_sets() -> None:
    net = make_net()
    optimizer = sgd(net)
    scheduler = L.LinearLR(optimizer, 1.0, 0.0, 19)
    ours_net = make_net()
    task = surestep.Task(ours_net, nn.MSELoss(), train=TRAIN)
    config = plain_config(max_steps=19, batch_size=7, optim=OPTIM, schedule="linear")
    session = prepare(task, config)
    for step in range(19):
        first = (5 * step) % 37
        x, y = TRAIN[0][first : first + 6], TRAIN[1][first : first + 6]
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        scheduler.step()
        result = session.train_step([(x[:4], y[:4]), (x[4:], y[4:])])
        if step in (3, 11):
            for group in (*optimizer.param_groups, *session.optimizer.param_groups):
                group["lr"] *= 1.5
        assert result.items == 6
    assert_same(weights(net), weights(ours_net))
