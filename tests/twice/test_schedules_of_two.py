"""Two optimizers: each follows the schedule of its own, as two schedulers by hand do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as L

import surestep
from tests.twice.compare import assert_same, in_batches, prepare, weights

X = torch.randn(53, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
TRAIN, VAL = (X[:43], Y[:43]), (X[43:], Y[43:])
LR = 0.05
Make = Callable[[torch.optim.Optimizer], Any]
tensor = partial(torch.tensor, dtype=torch.float64)


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def two_optimizers(manual_step: Any) -> None:
    for micro in manual_step.micro_batches("0", "2"):
        loss = nn.functional.mse_loss(manual_step.model(*micro.args), micro.targets)
        manual_step.backward(loss, micro)
    manual_step.step("0")
    if manual_step.index % 3 != 1:
        manual_step.step("2")
    else:  # its gradients are used up at a rate that the schedule gave
        manual_step.clip("2", 0.5)
        manual_step.step("2")


def fit_two(
    schedules: tuple[Any, Any], epochs: int, *, stop_at: int = 0, **options: Any
) -> list[Any]:
    """Train two optimizers; close the run after a step and open it again if `stop_at` is set."""
    net = make_net()
    task = surestep.Task(
        net,
        nn.MSELoss(),
        train=TRAIN,
        val=VAL,
        step=two_optimizers,
        optimizers={
            name: surestep.OptimizerSpec(
                surestep.Optim(name="sgd", lr=lr, weight_decay=0.0), schedule=schedule
            )
            for name, lr, schedule in zip("02", (LR, 0.3), schedules, strict=True)
        },
    )
    config = surestep.Config(
        epochs=epochs,
        batch_size=7,
        max_grad_norm=None,
        data={"shuffle": False},
        logging={"progress": "quiet"},
        **options,
    )
    session, rates = prepare(task, config, run="run"), []
    for end in (stop_at, 0):
        for result in session.steps():
            rates.append([o.param_groups[0]["lr"] for o in session.state.optimizers.values()])
            if result.step % 7 == 0:
                session.evaluate()
            if result.step == end:
                break
        if end:
            session.save()
            session.close()
            session = prepare(task, config, run="run")
    return [tensor(rates), weights(net)]


def two_by_hand(makes: tuple[Make, Make], epochs: int) -> list[Any]:
    net: Any = make_net()
    optimizers = [
        torch.optim.SGD(net[0].parameters(), lr=LR),
        torch.optim.SGD(net[2].parameters(), lr=0.3),
    ]
    schedulers = [make(o) for make, o in zip(makes, optimizers, strict=True)]
    rates: list[list[float]] = []
    for _ in range(epochs):
        for x, y in in_batches(7, *TRAIN):
            for optimizer in optimizers:
                optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            if len(rates) % 3 == 1:
                nn.utils.clip_grad_norm_(net[2].parameters(), 0.5)
            rates.append([o.param_groups[0]["lr"] for o in optimizers])
            for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
                optimizer.step()
                if not isinstance(scheduler, L.ReduceLROnPlateau):
                    scheduler.step()
        with torch.no_grad():
            loss = float(nn.functional.mse_loss(net(VAL[0]), VAL[1]))
        for scheduler in schedulers:
            if isinstance(scheduler, L.ReduceLROnPlateau):
                scheduler.step(loss)
    return [tensor(rates), weights(net)]


def test_two_optimizers_follow_schedules_of_their_own() -> None:
    plain = two_by_hand(
        (lambda o: L.CosineAnnealingLR(o, 21), lambda o: L.StepLR(o, 5, gamma=0.4)),
        3,
    )
    own = surestep.Schedule(name="step", step_size="5 steps", gamma=0.4)
    assert_same(plain, fit_two((None, own), 3, schedule="cosine"))


@pytest.mark.parametrize("stop_at", [0, 31])
@pytest.mark.parametrize("first", ["cosine", "plateau"])
def test_two_optimizers_fall_on_plateaus_by_options_of_their_own(first: str, stop_at: int) -> None:
    def slow(optimizer: torch.optim.Optimizer) -> Any:
        return L.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.3)

    def fast(optimizer: torch.optim.Optimizer) -> Any:
        return L.ReduceLROnPlateau(optimizer, factor=0.1, patience=2, threshold=0.8)

    cosine = (lambda o: L.CosineAnnealingLR(o, 56)) if first == "cosine" else slow
    plain = two_by_hand((cosine, fast), 8)
    name = {"name": "reduce_on_plateau"}
    own = surestep.Schedule(**name, factor=0.1, patience=2, threshold=0.8)
    shared = name | {"factor": 0.5, "patience": 0, "threshold": 0.3}
    options = {"schedule": "cosine" if first == "cosine" else shared}
    assert len({rate for _, rate in plain[0].tolist()}) > 1
    assert_same(plain, fit_two((None, own), 8, stop_at=stop_at, **options))


@pytest.mark.parametrize("stops", [(), (5, 9)])
def test_critic_of_three_updates_a_step_follows_its_rates_as_the_other_part(stops) -> None:
    """A part is updated three times at one rate of the step; the loop sets one part's rate."""

    def step(manual_step: Any) -> None:
        for name, times in (("2", 3), ("0", 1)):
            for _ in range(times):
                for micro in manual_step.micro_batches(name):
                    loss = nn.functional.mse_loss(manual_step.model(*micro.args), micro.targets)
                    manual_step.backward(loss, micro)
                manual_step.step(name)

    net: Any = make_net()
    optimizers = {
        name: torch.optim.SGD(net[int(name)].parameters(), lr=LR, momentum=0.9) for name in "02"
    }
    schedulers = [
        L.OneCycleLR(optimizers["2"], LR, total_steps=21),
        L.StepLR(optimizers["0"], 4, gamma=0.5),
    ]
    values, taken = [], 0
    for _ in range(3):
        for x, y in in_batches(7, *TRAIN):
            groups = [optimizer.param_groups[0] for optimizer in optimizers.values()]
            values.append([value for g in groups for value in (g["lr"], g["momentum"])])
            for name, times in (("2", 3), ("0", 1)):
                for _ in range(times):
                    net.zero_grad()
                    nn.functional.mse_loss(net(x), y).backward()
                    optimizers[name].step()
            for scheduler in schedulers:
                scheduler.step()
            taken += 1
            if taken == 6:
                optimizers["0"].param_groups[0]["lr"] *= 0.5
            if taken >= 8:
                optimizers["2"].param_groups[0]["momentum"] = 0.6
    plain = [tensor(values), weights(net)]

    optim = surestep.Optim(name="sgd", lr=LR, momentum=0.9, weight_decay=0.0)
    own = {"0": surestep.Schedule(name="step", step_size="4 steps", gamma=0.5)}
    own["2"] = surestep.Schedule(name="one_cycle")
    found: list[list[float]] = []
    for stop in (*stops, 0):
        ours_net = make_net()
        task = surestep.Task(
            ours_net,
            nn.MSELoss(),
            train=TRAIN,
            step=step,
            optimizers={n: surestep.OptimizerSpec(optim, schedule=own[n]) for n in "02"},
        )
        config = surestep.Config(
            epochs=3,
            batch_size=7,
            max_grad_norm=None,
            data={"shuffle": False},
            logging={"progress": "quiet"},
        )
        session = prepare(task, config, run="run")
        for result in session.steps():
            groups = [o.param_groups[0] for o in session.state.optimizers.values()]
            found.append([value for g in groups for value in (g["lr"], g["momentum"])])
            for name, option, value, at in (("0", "lr", None, 6), ("2", "momentum", 0.6, 8)):
                for group in session.state.optimizers[name].param_groups:
                    if result.step == at:
                        group[option] = value or 0.5 * group[option]
            if result.step == stop:
                session.save()
                break
        session.close()
    assert_same(plain, [tensor(found), weights(ours_net)])
