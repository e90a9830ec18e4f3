"""Best checkpoints and early stopping: of the evaluations that a loop by hand would compare."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.base.errors import Preempted
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

X = torch.randn(53, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
NOISE = torch.randn(53, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64) + NOISE
TRAIN, VAL, OTHER = (X[:29], Y[:29]), (X[29:40], Y[29:40]), (X[40:], Y[40:])
HIGH = 0.4  # a learning rate with which the validation loss rises and falls


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


def loss_of(net: nn.Module, data: tuple[Tensor, Tensor] = VAL) -> float:
    with torch.no_grad():
        return float(nn.functional.mse_loss(net(data[0]), data[1]))


def steps_by_hand(net: nn.Module, epochs: int, lr: float = HIGH) -> Iterator[tuple[int, int]]:
    """Train by hand; yield the step and the epoch, both from 1, after each step."""
    optimizer, step = torch.optim.SGD(net.parameters(), lr=lr), 0
    for epoch in range(1, epochs + 1):
        for x, y in in_batches(7, *TRAIN):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            step += 1
            yield step, epoch


class EarlyStop:
    """Early stopping as it is written in a training loop."""

    def __init__(self, patience: float = math.inf, min_delta: float = 0.0, sign: int = 1) -> None:
        self.patience, self.min_delta, self.sign = patience, min_delta, sign
        self.best, self.bad, self.seen = math.inf, 0, dict[int, float]()

    def stops(self, step: int, value: float, *, counts: bool = True) -> bool:
        self.seen[step] = value
        if self.sign * value < self.best - self.min_delta:
            self.best, self.bad = self.sign * value, 0
        elif counts:
            self.bad += 1
        return self.bad >= self.patience

    def best_steps(self) -> list[int]:
        known = {at: value for at, value in self.seen.items() if value == value}
        return sorted(known, key=lambda at: (self.sign * known[at], at))


def fit(name: str = "run", net: nn.Module | None = None, **options: Any) -> surestep.Run:
    more = options.pop("more", {})
    val = options.pop("val", VAL)
    net = net or make_net()
    task = surestep.Task(net, nn.MSELoss(), train=TRAIN, val=val, **more)
    options = {"epochs": 9, "batch_size": 7, "optim": {"lr": HIGH}} | options
    return surestep.Trainer(task, plain_config(**options), run=name).fit()


def evaluations(run: surestep.Run, name: str = "val/loss") -> dict[int, float]:
    found = [event for event in run.events() if event["event"] == "evaluation"]
    return {event["step"]: float(event["metrics"][name]) for event in found}


def kept(run: surestep.Run) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in run.checkpoints.iterdir())


def saved(run: surestep.Run, which: Any = "best") -> dict[str, Tensor]:
    net = make_net()
    run.load_model(net, which=which)
    return weights(net)


@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize("min_delta", [0.0, 0.05, 0.4])
def test_run_ends_at_the_evaluation_that_a_loop_by_hand_ends_at(patience, min_delta) -> None:
    net, stop = make_net(), EarlyStop(patience, min_delta)
    for step, _ in steps_by_hand(net, 9):
        if (step % 3 == 0 or step == 45) and stop.stops(step, loss_of(net)):
            break
    run = fit(
        validation={"every": "3 steps"},
        early_stop={"patience": patience, "min_delta": min_delta},
    )

    assert_same(stop.seen, evaluations(run))
    assert_same(weights(net), saved(run, "last"))
    assert run.last.step == max(stop.seen)
    assert run.best.step == stop.best_steps()[0]


def test_best_weights_are_a_copy_of_the_best_epoch_with_a_short_last_batch() -> None:
    net, stop, best = make_net(), EarlyStop(), {}
    for step, _ in steps_by_hand(net, 5):
        if step % 5 == 0 and not stop.stops(step, loss_of(net)) and stop.bad == 0:
            best = copy.deepcopy(weights(net))
    run = fit(epochs=5)

    assert_same(stop.seen, evaluations(run))
    assert_same(best, saved(run))


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_kept_checkpoints_are_the_best_of_all_evaluations_and_the_last(keep: int) -> None:
    net, stop = make_net(), EarlyStop()
    for step, _ in steps_by_hand(net, 9):
        if step % 2 == 0 or step == 45:
            stop.stops(step, loss_of(net))
    run = fit(
        validation={"every": "2 steps"},
        checkpoint={"keep_best": keep, "keep_last": 1, "every": None},
        early_stop={"patience": 100, "min_delta": 5.0},
    )

    assert sorted({*stop.best_steps()[:keep], 45}) == kept(run)


@pytest.mark.parametrize("every", [0.4, 0.5, 1.5, 2.0, 0.3])
def test_evaluations_in_parts_of_epochs_come_at_the_first_step_after_each_multiple(every) -> None:
    net, seen = make_net(), {}
    for step, _ in steps_by_hand(net, 4):
        whole = [count for count in range(1, 40) if abs(step - 5 * every * count) < 1e-9]
        crossed = math.floor(step / (5 * every) + 1e-9) > math.floor(
            (step - 1) / (5 * every) + 1e-9
        )
        if whole or crossed or step == 20:
            seen[step] = loss_of(net)

    assert_same(seen, evaluations(fit(epochs=4, validation={"every": f"{every} epochs"})))


def test_largest_value_of_a_metric_of_an_own_class_is_the_best_of_the_second_set() -> None:
    class Near:
        """The share of predictions within 0.9 of the target."""

        higher_is_better = True

        def reset(self) -> None:
            self.near, self.all = 0, 0

        def update(self, outputs: Tensor, targets: Tensor) -> None:
            self.near += int(((outputs - targets).abs() < 0.9).sum())
            self.all += len(targets)

        def compute(self) -> float:
            return self.near / self.all

    net, stop = make_net(), EarlyStop(2, 0.1, sign=-1)
    for step, _ in steps_by_hand(net, 9):
        if step % 2 == 0:
            with torch.no_grad():
                near = float(((net(OTHER[0]) - OTHER[1]).abs() < 0.9).double().mean())
            if stop.stops(step, near):
                break
    run = fit(
        val={"small": VAL, "other": OTHER},
        more={"metrics": {"near": Near()}},
        validation={"every": "2 steps", "metric": "other/near", "batch_size": 4},
        early_stop={"patience": 2, "min_delta": 0.1},
    )

    assert_same(stop.seen, evaluations(run, "other/near"))
    assert run.best.step == stop.best_steps()[0]
    assert run.last.step == max(stop.seen)


def test_first_validation_set_decides_and_the_others_do_not() -> None:
    net, stops = make_net(), {"zebra": EarlyStop(2), "ant": EarlyStop(2)}
    for step, _ in steps_by_hand(net, 9):
        if step % 5 == 0:
            stops["ant"].stops(step, loss_of(net, OTHER))
            if stops["zebra"].stops(step, loss_of(net)):
                break
    run = fit(val={"zebra": VAL, "ant": OTHER}, early_stop=2)

    assert_same(stops["zebra"].seen, evaluations(run, "zebra/loss"))
    assert_same(stops["ant"].seen, evaluations(run, "ant/loss"))
    assert run.best.step == stops["zebra"].best_steps()[0]


def nan_between(first: int, last: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a metric that is NaN at some evaluations, counted by its full batches."""
    count = iter(range(10_000))

    def metric(outputs: Tensor, targets: Tensor) -> Tensor:
        if first <= next(count) < last:
            return torch.tensor(math.nan)
        return (outputs - targets).square().mean()

    return metric


@pytest.mark.parametrize("bad", [(0, 2), (2, 5)])
def test_nan_is_no_improvement_and_is_never_the_best(bad: tuple[int, int]) -> None:
    net, stop, count = make_net(), EarlyStop(4), 0
    for step, _ in steps_by_hand(net, 9, 0.1):
        if step % 5 == 0:
            value = math.nan if bad[0] <= count < bad[1] else loss_of(net)
            count += 1
            if stop.stops(step, value):
                break
    task_metric = nan_between(*bad)
    calls: list[int] = []

    def metric(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(outputs) < 11 or not started:
            return (outputs - targets).square().mean()
        calls.append(1)
        return task_metric(outputs, targets)

    started: list[bool] = []

    class Start(surestep.Callback):
        def on_start(self, state: Any) -> None:
            started.append(True)

    task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL, metrics={"own": metric})
    config = plain_config(
        epochs=9,
        batch_size=7,
        validation={"metric": "own", "mode": "min", "batch_size": 11},
        early_stop={"patience": 4},
    )
    run = surestep.Trainer(task, config, run="run", callbacks=[Start()]).fit()

    assert_same(stop.seen, evaluations(run, "val/own"))
    assert run.best.step == stop.best_steps()[0]


def test_evaluation_before_the_first_step_counts_as_an_evaluation() -> None:
    """Training diverges, so the weights before the first step are the best."""
    net, stop = make_net(), EarlyStop(2)
    stop.stops(0, loss_of(net))
    before = weights(net)
    for step, _ in steps_by_hand(net, 9, 3.0):
        if step % 5 == 0 and stop.stops(step, loss_of(net)):
            break
    run = fit(validation={"on_start": True}, early_stop=2, optim={"lr": 3.0})

    assert_same(stop.seen, evaluations(run))
    assert run.best.step == 0
    assert_same(before, saved(run))
    assert run.last.step == 10


def test_evaluations_before_the_start_do_not_count_but_can_be_the_best() -> None:
    net, stop = make_net(), EarlyStop(2)
    for step, epoch in steps_by_hand(net, 9, 3.0):
        if step % 5 == 0 and stop.stops(step, loss_of(net), counts=epoch > 3):
            break
    run = fit(early_stop={"patience": 2, "start": "3 epochs"}, optim={"lr": 3.0})

    assert_same(stop.seen, evaluations(run))
    assert run.best.step == 5


@pytest.mark.parametrize("at", [1, 6, 7])
def test_patience_and_the_best_go_on_after_a_resume_in_an_epoch(at: int) -> None:
    net, stop = make_net(), EarlyStop(3, 0.05)
    for step, _ in steps_by_hand(net, 9):
        if step % 3 == 0 and stop.stops(step, loss_of(net)):
            break

    class Pause(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> Any:
            return surestep.Request.PAUSE if state.progress.step == at else None

    options = plain_config(
        epochs=9,
        batch_size=7,
        optim={"lr": HIGH},
        validation={"every": "3 steps"},
        early_stop={"patience": 3, "min_delta": 0.05},
    )
    task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL)
    with pytest.raises(Preempted):
        surestep.Trainer(task, options, run="run", callbacks=[Pause()]).fit()
    task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL)
    run = surestep.Trainer(task, options, run="run").fit()

    assert_same(stop.seen, evaluations(run))
    assert run.best.step == stop.best_steps()[0]
    assert_same(weights(net), saved(run, "last"))


def test_own_loop_that_evaluates_has_the_best_of_its_evaluations() -> None:
    net, stop = make_net(), EarlyStop(3)
    for step, _ in steps_by_hand(net, 9):
        if step in (2, 3, 11, 13, 29) or step % 17 == 0:
            stop.stops(step, loss_of(net))
    task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL)
    session = prepare(task, plain_config(epochs=9, batch_size=7, optim={"lr": HIGH}), run="run")
    for result in session.steps():
        if result.step in (2, 3, 11, 13, 29) or result.step % 17 == 0:
            session.evaluate("val")  # a set by its name counts for nothing
            session.evaluate()
            session.evaluate()  # nor does the same step again
    best = session.state.best

    assert_same(stop.best, best.best)
    assert best.best_step == stop.best_steps()[0]
    assert best.since_best == stop.bad


def test_patience_of_a_metric_that_counts_weighted_tokens() -> None:
    """The monitored loss is a mean over targets that are not ignored, not over batches."""
    torch.manual_seed(3)
    x, y = torch.randn(31, 5, 4).double(), torch.randint(0, 3, (31, 5))
    y[torch.rand(31, 5) < 0.4] = -100
    y[20] = -100

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).transpose(1, 2)

    torch.manual_seed(0)
    net, stop = Net().double(), EarlyStop(2, 0.01)
    start = weights(net)
    optimizer, step = torch.optim.SGD(net.parameters(), lr=4.0), 0
    for _ in range(6):
        for a, b in in_batches(7, x[:17], y[:17]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(a), b).backward()
            optimizer.step()
            step += 1
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(net(x[17:]), y[17:]))
        if stop.stops(step, loss):
            break
    net.load_state_dict(start)
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(x[:17], y[:17]), val=(x[17:], y[17:]))
    config = plain_config(
        epochs=6,
        batch_size=7,
        optim={"lr": 4.0},
        validation={"batch_size": 3},
        early_stop={"patience": 2, "min_delta": 0.01},
    )
    run = surestep.Trainer(task, config, run="run").fit()

    assert_same(stop.seen, evaluations(run))
    assert run.best.step == stop.best_steps()[0]
