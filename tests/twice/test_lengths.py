"""The length of a run, of an epoch and of what is counted in them."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as L
from torch.utils.data import IterableDataset

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

X = torch.randn(53, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
TRAIN, VAL = (X[:43], Y[:43]), (X[43:], Y[43:])  # 7 batches of 7, the last has one sample
LR = 0.1


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


def loss_of(net: nn.Module) -> float:
    with torch.no_grad():
        return float(nn.functional.mse_loss(net(VAL[0]), VAL[1]))


def evaluations(run: surestep.Run) -> dict[int, float]:
    found = [event for event in run.events() if event["event"] == "evaluation"]
    return {event["step"]: float(event["metrics"]["val/loss"]) for event in found}


class ByHand:
    """A loop by hand over batches, which steps a scheduler after each update."""

    def __init__(self, make: Any = None) -> None:
        self.net = make_net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=LR)
        self.scheduler = None if make is None else make(self.optimizer)
        self.rates: list[float] = []

    def step(self, x: Tensor, y: Tensor) -> int:
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.net(x), y).backward()
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return len(self.rates)


def fit(train: Any = TRAIN, callbacks: Any = (), **options: Any) -> Any:
    net, rates = make_net(), []

    class Watch(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> None:
            rates.append(state.optimizer.param_groups[0]["lr"])

    task = surestep.Task(net, nn.MSELoss(), train=train, val=VAL)
    config = plain_config(**{"batch_size": 7, "optim": {"lr": LR}} | options)
    run = surestep.Trainer(task, config, run="run", callbacks=[Watch(), *callbacks]).fit()
    return run, torch.tensor(rates), weights(net)


@pytest.mark.parametrize(("epochs", "steps"), [(2.5, 18), (0.5, 4), (0.1, 1), (1.2, 8)])
def test_run_of_a_part_of_an_epoch_has_the_rates_of_its_steps(epochs: float, steps: int) -> None:
    hand, seen = ByHand(lambda o: L.CosineAnnealingLR(o, steps)), {}
    for _ in range(3):
        for x, y in in_batches(7, *TRAIN):
            if len(hand.rates) < steps and (hand.step(x, y) % 7 == 0 or len(hand.rates) == steps):
                seen[len(hand.rates)] = loss_of(hand.net)
    run, rates, now = fit(epochs=epochs, schedule="cosine")

    assert_same(torch.tensor(hand.rates), rates)
    assert_same(weights(hand.net), now)
    assert_same(seen, evaluations(run))


def test_epoch_without_its_last_batch_is_shorter_for_schedules_and_evaluations() -> None:
    hand, seen = ByHand(), {}
    falls = L.StepLR(hand.optimizer, 2, gamma=0.5)
    for epoch in range(5):
        for x, y in in_batches(7, *TRAIN):
            if len(x) == 7:
                hand.step(x, y)
        falls.step()
        if epoch % 2 == 1 or epoch == 4:
            seen[len(hand.rates)] = loss_of(hand.net)
    schedule = {"name": "step", "step_size": "2 epochs", "gamma": 0.5, "interval": "1 epoch"}
    run, rates, now = fit(
        epochs=5,
        data={"drop_last": True},
        schedule=schedule,
        validation={"every": "2 epochs"},
    )

    assert_same(torch.tensor(hand.rates), rates)
    assert_same(weights(hand.net), now)
    assert_same(seen, evaluations(run))


def test_epoch_that_is_limited_is_shorter_for_schedules_evaluations_and_averages() -> None:
    hand, seen = ByHand(), {}
    falls = L.ExponentialLR(hand.optimizer, 0.7)
    average = torch.optim.swa_utils.AveragedModel(hand.net)
    for epoch in range(4):
        for x, y in [*in_batches(7, *TRAIN)][:3]:
            hand.step(x, y)
        falls.step()
        if epoch >= 2:
            average.update_parameters(hand.net)
        seen[len(hand.rates)] = loss_of(average if epoch >= 2 else hand.net)
    run, rates, now = fit(
        epochs=4,
        limit_train_batches=3,
        schedule={"name": "exponential", "gamma": 0.7},
        average={"kind": "swa", "start": "2 epochs"},
    )

    assert_same(torch.tensor(hand.rates), rates)
    assert_same(weights(hand.net), now)
    assert_same(seen, evaluations(run))


class Rows(IterableDataset):  # type: ignore[type-arg]
    """A stream that does not know its length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(*TRAIN, strict=True)


@pytest.mark.parametrize("every", ["1 epoch", "2 epochs", "5 steps"])
def test_evaluations_of_a_stream_come_at_the_ends_of_its_epochs(every: str) -> None:
    hand, seen = ByHand(lambda o: L.LinearLR(o, 1.0, 0.0, 23)), {}
    for epoch in range(4):
        for index, (x, y) in enumerate(in_batches(7, *TRAIN)):
            if len(hand.rates) < 23:
                step = hand.step(x, y)
                ends = index == 6 and (epoch + 1) % int(every[0]) == 0
                if (step % 5 == 0 if "steps" in every else ends) or step == 23:
                    seen[step] = loss_of(hand.net)
    run, rates, now = fit(Rows(), max_steps=23, schedule="linear", validation={"every": every})

    assert_same(torch.tensor(hand.rates), rates)
    assert_same(weights(hand.net), now)
    assert_same(seen, evaluations(run))


def test_mean_over_a_stream_is_of_every_step_from_the_start_of_its_average() -> None:
    hand = ByHand()
    average = torch.optim.swa_utils.AveragedModel(hand.net)
    for _ in range(4):
        for x, y in in_batches(7, *TRAIN):
            if len(hand.rates) < 23 and hand.step(x, y) > 17:  # 75% of 23 steps
                average.update_parameters(hand.net)
    run, _, now = fit(Rows(), max_steps=23, average="swa")

    assert_same(weights(hand.net), now)
    assert_same(loss_of(average), evaluations(run)[23])


def test_requested_evaluations_count_for_the_patience_once_a_step() -> None:
    hand, seen, best, bad = ByHand(), {}, float("inf"), 0
    hand.optimizer.param_groups[0]["lr"] = 0.9
    for _ in range(4):
        for x, y in in_batches(7, *TRAIN):
            step = hand.step(x, y)
            if bad < 3 and (step in (2, 7, 9) or step % 7 == 0):
                seen[step] = loss_of(hand.net)
                best, bad = (seen[step], 0) if seen[step] < best else (best, bad + 1)

    class Ask(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> Any:
            return surestep.Request.EVALUATE if result.step in (2, 7, 9) else None

    run, _, _ = fit(callbacks=[Ask()], epochs=4, optim={"lr": 0.9}, early_stop=3)

    assert_same(seen, evaluations(run))
    assert run.best.step == min(seen, key=seen.__getitem__)


def test_plateau_of_two_validation_sets_follows_the_set_that_decides() -> None:
    hand = ByHand()
    plateau = L.ReduceLROnPlateau(hand.optimizer, "max", 0.5, patience=0, threshold=0.01)
    for _ in range(5):
        for x, y in in_batches(7, *TRAIN):
            hand.step(x, y)
        with torch.no_grad():
            near = ((hand.net(X[:17]) - Y[:17]).abs() < 0.3).double().mean()
        plateau.step(float(near))
    task = surestep.Task(
        make_net(),
        nn.MSELoss(),
        train=TRAIN,
        val={"one": VAL, "two": (X[:17], Y[:17])},
        metrics={"near": lambda o, t: ((o - t).abs() < 0.3).double().mean()},
    )
    schedule = {"name": "reduce_on_plateau", "factor": 0.5, "patience": 0, "threshold": 0.01}
    config = plain_config(
        epochs=5,
        batch_size=7,
        optim={"lr": LR},
        schedule=schedule,
        validation={"metric": "two/near", "mode": "max", "batch_size": 4},
    )
    session, rates = prepare(task, config), []
    for result in session.steps():
        rates.append(result.lr)
        if result.step % 7 == 0:
            session.evaluate()

    assert len(set(hand.rates)) > 1
    assert_same(torch.tensor(hand.rates), torch.tensor(rates))
