"""Schedules: the rates and weights of a loop that steps torch's schedulers, at every step."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as L

import surestep
from surestep.base.errors import Preempted
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

X = torch.randn(53, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
TRAIN, VAL = (X[:43], Y[:43]), (X[43:], Y[43:])
PER_EPOCH = 7  # 43 samples in batches of 7, the last has one
LR = 0.05
Make = Callable[[torch.optim.Optimizer], Any]
tensor = partial(torch.tensor, dtype=torch.float64)


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)


def by_hand(
    make: Make,
    epochs: int = 3,
    *,
    each_epoch: Make | None = None,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    max_steps: int | None = None,
) -> list[Any]:
    """Train with a scheduler that steps after each update, and one that steps after each epoch."""
    net = make_net()
    optimizer = optimizer_of(net)
    scheduler = make(optimizer)
    slow = None if each_epoch is None else each_epoch(optimizer)
    rates: list[list[float]] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The epoch parameter")  # a warning of SequentialLR
        for _ in range(epochs):
            for x, y in in_batches(7, *TRAIN):
                if len(rates) == max_steps:
                    break
                optimizer.zero_grad()
                nn.functional.mse_loss(net(x), y).backward()
                optimizer.step()
                rates.append([group["lr"] for group in optimizer.param_groups])
                if scheduler is not None:
                    scheduler.step()
            if slow is not None:
                slow.step()
    return [tensor(rates), weights(net)]


def ours(task: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    """Train with surestep; of several parameter groups, list each rate once."""
    net = make_net()
    made = surestep.Task(net, nn.MSELoss(), train=TRAIN, val=VAL, **task or {})
    options = {"epochs": 3, "batch_size": 7} | options
    options["optim"] = {"lr": LR, "momentum": 0.9} | options.get("optim", {})
    session, rates = prepare(made, plain_config(**options)), []
    for _ in session.steps():
        now = [group["lr"] for group in session.optimizer.param_groups]
        rates.append(list(dict.fromkeys(now)))
    return [tensor(rates), weights(net)]


CURVES: dict[str, tuple[dict[str, Any], Make]] = {
    "cosine to the last prime step": (
        {"name": "cosine", "min_lr": 0.01},
        lambda o: L.CosineAnnealingLR(o, 19, eta_min=0.01),
    ),
    "line": ({"name": "linear"}, lambda o: L.LinearLR(o, 1.0, 0.0, 19)),
    "power": ({"name": "polynomial", "power": 0.9}, lambda o: L.PolynomialLR(o, 19, power=0.9)),
    "restarts that do not fit the run": (
        {"name": "cosine_restarts", "T_0": "4 steps", "T_mult": 2, "min_lr": 0.002},
        lambda o: L.CosineAnnealingWarmRestarts(o, 4, 2, eta_min=0.002),
    ),
    "one cycle": (
        {"name": "one_cycle", "pct_start": 0.23, "cycle_momentum": False},
        lambda o: L.OneCycleLR(o, LR, total_steps=19, pct_start=0.23, cycle_momentum=False),
    ),
    "one cycle in three phases with its momentum": (
        {"name": "one_cycle", "three_phase": True, "anneal_strategy": "linear"},
        lambda o: L.OneCycleLR(o, LR, total_steps=19, three_phase=True, anneal_strategy="linear"),
    ),
    "cycles that shrink, with their momentum": (
        {
            **{"name": "cyclic", "step_size_up": "3 steps", "step_size_down": "2 steps"},
            **{"mode": "exp_range", "gamma": 0.97, "min_lr": 0.01, "cycle_momentum": True},
        },
        lambda o: L.CyclicLR(
            o, 0.01, LR, step_size_up=3, step_size_down=2, mode="exp_range", gamma=0.97
        ),
    ),
    "half cycles": (
        {"name": "cyclic", "step_size_up": "3 steps", "mode": "triangular2", "min_lr": 0.0},
        lambda o: L.CyclicLR(o, 0.0, LR, step_size_up=3, mode="triangular2", cycle_momentum=False),
    ),
    "milestones": (
        {"name": "multi_step", "milestones": ("5 steps", "1 epoch", "17 steps"), "gamma": 0.3},
        lambda o: L.MultiStepLR(o, [5, 7, 17], gamma=0.3),
    ),
    "steps of a fraction of an epoch that is whole steps": (
        {"name": "step", "step_size": "3 steps", "gamma": 0.7},
        lambda o: L.StepLR(o, 3, gamma=0.7),
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_curve_equals_torchs_in_a_run_of_a_prime_number_of_steps(name: str) -> None:
    said, make = CURVES[name]
    plain = by_hand(make, max_steps=19)
    assert_same(plain, ours(schedule=said, epochs=None, max_steps=19))


SLOW: dict[str, tuple[dict[str, Any], Make]] = {
    "exponential": ({"name": "exponential", "gamma": 0.8}, lambda o: L.ExponentialLR(o, 0.8)),
    "step": (
        {"name": "step", "step_size": "2 epochs", "gamma": 0.3, "interval": "1 epoch"},
        lambda o: L.StepLR(o, 2, gamma=0.3),
    ),
    "cosine": (
        {"name": "cosine", "interval": "1 epoch"},
        lambda o: L.CosineAnnealingLR(o, 5),
    ),
    "milestones": (
        {"name": "multi_step", "milestones": ("1 epoch", "4 epochs"), "interval": "1 epoch"},
        lambda o: L.MultiStepLR(o, [1, 4]),
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_schedule_of_epochs_changes_at_the_end_of_each_epoch(name: str) -> None:
    said, make = SLOW[name]
    plain = by_hand(lambda _: None, 5, each_epoch=make)
    assert_same(plain, ours(schedule=said, epochs=5))


def by_rates(rate_at: Callable[[int, int], float], epochs: int) -> list[Any]:
    """Train at the rates LR * rate_at(step, epoch), both from 0."""
    net, rates = make_net(), []
    optimizer = sgd(net)
    for epoch in range(epochs):
        for x, y in in_batches(7, *TRAIN):
            optimizer.param_groups[0]["lr"] = LR * rate_at(len(rates), epoch)
            rates.append([optimizer.param_groups[0]["lr"]])
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
    return [tensor(rates), weights(net)]


def factors(make: Make, count: int) -> list[float]:
    """Return the factors of a scheduler that steps `count` times."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("warmup", [3, 5])
def test_schedule_of_epochs_warms_up_at_each_step_of_the_first_epoch(name, warmup) -> None:
    said, make = SLOW[name]
    slow = factors(make, 5)
    rise = factors(lambda o: L.LinearLR(o, 1 / warmup, 1.0, warmup), 35)
    plain = by_rates(lambda step, epoch: rise[step] * slow[epoch], 5)
    assert_same(plain, ours(schedule=said | {"warmup": f"{warmup} steps"}, epochs=5))


def test_decay_of_each_epoch_begins_after_a_warmup_of_one_epoch() -> None:
    rise = factors(lambda o: L.LinearLR(o, 1 / 7, 1.0, 7), 35)
    plain = by_rates(lambda step, epoch: rise[step] * 0.8 ** max(0, epoch - 1), 4)
    said = {"name": "exponential", "gamma": 0.8, "warmup": "1 epoch"}
    assert_same(plain, ours(schedule=said, epochs=4))


def test_warmup_of_a_share_of_the_run_rises_at_each_step_of_an_epoch_and_a_half() -> None:
    """30% of 35 steps are 10.5 steps; the cosine of the epochs has the last four of five."""
    falls = factors(lambda o: L.CosineAnnealingLR(o, 4), 4)

    def rate(step: int, epoch: int) -> float:
        first = 1 / 10.5
        return first + (1 - first) * step / 10.5 if step < 10.5 else falls[epoch - 1]

    said = {"name": "cosine", "interval": "1 epoch", "warmup": "30%"}
    assert_same(by_rates(rate, 5), ours(schedule=said, epochs=5))


def test_own_function_equals_lambda_lr_with_a_prime_length() -> None:
    def curve(taken: int, total: int) -> float:
        return 0.5 ** (taken // 4) if taken < total - 3 else 0.001 * taken

    plain = by_hand(lambda o: L.LambdaLR(o, lambda step: curve(step, 19)), max_steps=19)
    ours_now = ours({"schedule": curve}, schedule={}, epochs=None, max_steps=19)
    assert_same(plain, ours_now)


def test_own_optimizer_with_two_groups_follows_one_cycle_with_its_betas() -> None:
    def two(net: Any) -> torch.optim.Optimizer:
        parts = [{"params": net[0].parameters(), "lr": 0.01}, {"params": net[2].parameters()}]
        return torch.optim.Adam(parts, lr=LR, betas=(0.8, 0.97))

    plain = by_hand(
        lambda o: L.OneCycleLR(o, [0.01, LR], total_steps=21, pct_start=0.4), optimizer_of=two
    )
    net = make_net()
    parts = [{"params": net[0].parameters(), "lr": 0.01}, {"params": net[2].parameters()}]

    def make(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parts, lr=LR, betas=(0.8, 0.97))

    task = surestep.Task(net, nn.MSELoss(), train=TRAIN, optimizer=make)
    config = surestep.Config(
        epochs=3,
        batch_size=7,
        max_grad_norm=None,
        data={"shuffle": False},
        schedule={"name": "one_cycle", "pct_start": 0.4},
        logging={"progress": "quiet"},
    )
    session, rates = prepare(task, config), []
    for _ in session.steps():
        rates.append([group["lr"] for group in session.optimizer.param_groups])
    assert_same(plain, [tensor(rates), weights(net)])


@pytest.mark.parametrize("at", [1, 7, 12])
def test_momentum_and_rate_of_one_cycle_go_on_after_a_resume(at: int) -> None:
    plain = by_hand(lambda o: L.OneCycleLR(o, LR, total_steps=21))

    class Pause(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> Any:
            return surestep.Request.PAUSE if state.progress.step == at else None

    config = plain_config(
        epochs=3, batch_size=7, optim={"lr": LR, "momentum": 0.9}, schedule="one_cycle"
    )
    task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN)
    first = surestep.Trainer(task, config, run="run", callbacks=[Pause()])
    with pytest.raises(Preempted):
        first.fit()
    net = make_net()
    task = surestep.Task(net, nn.MSELoss(), train=TRAIN)
    surestep.Trainer(task, config, run="run").fit()
    assert_same(plain[1], weights(net))


def test_skipped_step_is_not_a_step_of_the_schedule_or_of_the_momentum() -> None:
    """Batch 9 is NaN: a loop by hand skips its update and its scheduler step."""
    x = X[:43].clone()
    x[9 + 7] = torch.nan  # in batch 3 of each epoch
    net, rates = make_net(), []
    optimizer = sgd(net)
    scheduler = L.OneCycleLR(optimizer, LR, total_steps=21)
    for _ in range(3):
        for a, b in in_batches(7, x, TRAIN[1]):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(a), b)
            loss.backward()
            if torch.isfinite(loss):
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                scheduler.step()
    ours_net = make_net()
    task = surestep.Task(ours_net, nn.MSELoss(), train=(x, TRAIN[1]))
    config = plain_config(
        epochs=3,
        batch_size=7,
        optim={"lr": LR, "momentum": 0.9},
        schedule="one_cycle",
        on_nonfinite="skip",
    )
    session, found = prepare(task, config), []
    for result in session.steps():
        if result.took_step:
            found.append(result.lr)
    assert len(rates) == 18
    assert_same([tensor(rates), weights(net)], [tensor(found), weights(ours_net)])


@pytest.mark.parametrize("cooldown", [0, 2])
def test_plateau_with_a_warmup_and_two_groups_equals_torchs(cooldown: int) -> None:
    net, rates = make_net(), []
    parts = [{"params": net[0].parameters(), "lr": LR}, {"params": net[2].parameters()}]
    optimizer = torch.optim.SGD(parts, lr=0.1 * LR, momentum=0.9)
    scheduler = L.ReduceLROnPlateau(
        optimizer, factor=0.3, patience=1, threshold=0.7, cooldown=cooldown
    )
    rise, step = factors(lambda o: L.LinearLR(o, 1 / 5, 1.0, 5), 70), 0
    for _ in range(8):
        for a, b in in_batches(7, *TRAIN):
            peaks = [group["lr"] for group in optimizer.param_groups]
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rise[step]
            optimizer.zero_grad()
            nn.functional.mse_loss(net(a), b).backward()
            optimizer.step()
            rates.append([group["lr"] for group in optimizer.param_groups])
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak
            step += 1
        with torch.no_grad():
            scheduler.step(float(nn.functional.mse_loss(net(VAL[0]), VAL[1])))
    ours_net = make_net()
    task = surestep.Task(ours_net, nn.MSELoss(), train=TRAIN, val=VAL)
    config = plain_config(
        epochs=8,
        batch_size=7,
        optim={"lr": LR, "momentum": 0.9, "groups": ["2 lr=0.1x"]},
        schedule={
            **{"name": "reduce_on_plateau", "factor": 0.3, "patience": 1, "threshold": 0.7},
            **{"cooldown": cooldown, "warmup": "5 steps"},
        },
    )
    session, found = prepare(task, config), []
    for result in session.steps():
        now = [group["lr"] for group in session.optimizer.param_groups]
        found.append(list(dict.fromkeys(now)))
        if result.step % 7 == 0:
            session.evaluate()
    assert len({row[0] for row in rates}) > 6
    assert_same([tensor(rates), weights(net)], [tensor(found), weights(ours_net)])


def test_minimum_of_a_group_with_its_own_rate_is_in_proportion() -> None:
    net = make_net()
    parts = [{"params": net[0].parameters(), "lr": LR}, {"params": net[2].parameters()}]
    optimizer = torch.optim.SGD(parts, lr=0.004, momentum=0.9)
    schedulers = [L.LambdaLR(optimizer, lambda t: 0.2 + 0.8 * (1 + math.cos(math.pi * t / 21)) / 2)]
    rates = []
    for _ in range(3):
        for x, y in in_batches(7, *TRAIN):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            rates.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            schedulers[0].step()
    said = {"name": "cosine", "min_lr": 0.2 * LR}
    assert_same(
        [tensor(rates), weights(net)], ours(schedule=said, optim={"groups": ["2 lr=0.004"]})
    )


def test_longer_run_goes_on_at_the_rates_of_its_curve() -> None:
    """A warm-up and a constant rate do not depend on the length of the run."""
    plain = by_hand(lambda o: L.LinearLR(o, 1 / 9, 1.0, 9), 4)
    net = make_net()
    for epochs in (2, 3, 4):
        config = plain_config(
            epochs=epochs,
            batch_size=7,
            optim={"lr": LR, "momentum": 0.9},
            schedule={"name": "constant", "warmup": "9 steps"},
        )
        net = make_net()
        task = surestep.Task(net, nn.MSELoss(), train=TRAIN)
        surestep.Trainer(task, config, run="run").fit()
    assert_same(plain[1], weights(net))


def test_rate_that_a_loss_of_the_user_reads_is_that_of_the_step() -> None:
    """A closure over a count of its own sees one call for each step and micro-batch."""
    plain = by_hand(lambda o: L.CosineAnnealingLR(o, 21))
    seen: list[float] = []

    class Watch(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> None:
            seen.append(state.optimizer.param_groups[0]["lr"])

    net = make_net()
    task = surestep.Task(net, nn.MSELoss(), train=TRAIN)
    config = plain_config(
        epochs=3,
        batch_size=7,
        micro_batch_size=3,
        optim={"lr": LR, "momentum": 0.9},
        schedule="cosine",
    )
    surestep.Trainer(task, config, run="run", callbacks=[Watch()]).fit()
    assert_same([plain[0][:, 0], plain[1]], [tensor(seen), weights(net)])
