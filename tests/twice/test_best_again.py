"""Early stopping, plateaus and kept checkpoints: ties, infinities, own loops and resumes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection

import surestep
from surestep.base.errors import Preempted
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights
from tests.twice.test_best import (
    HIGH,
    OTHER,
    TRAIN,
    VAL,
    EarlyStop,
    evaluations,
    fit,
    kept,
    loss_of,
    make_net,
    saved,
    steps_by_hand,
)


class PauseAt(surestep.Callback):
    """Stops the run after some step, as a signal does."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, state: Any, result: Any) -> Any:
        return surestep.Request.PAUSE if state.progress.step == self.at else None


def resumed(at: int, net: nn.Module | None = None, **options: Any) -> surestep.Run:
    """Return a run that was stopped after a step and resumed."""
    more, val = options.pop("more", {}), options.pop("val", VAL)
    config = plain_config(**{"epochs": 9, "batch_size": 7, "optim": {"lr": HIGH}} | options)
    for callbacks in ([PauseAt(at)], []):
        task = surestep.Task(net or make_net(), nn.MSELoss(), train=TRAIN, val=val, **more)
        trainer = surestep.Trainer(task, config, run="run", callbacks=callbacks)
        if callbacks:
            with pytest.raises(Preempted):
                trainer.fit()
    return trainer.fit()


def rounded(outputs: Tensor, targets: Tensor) -> Tensor:
    """A share of predictions, which has the same value at many evaluations."""
    return ((outputs - targets).abs() < 2.5).double().mean()


def share(net: nn.Module, data: tuple[Tensor, Tensor] = VAL) -> float:
    with torch.no_grad():
        return float(rounded(net(data[0]), data[1]))


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
@pytest.mark.parametrize("at", [None, 17])
def test_of_equal_values_the_earlier_checkpoints_are_kept(keep: int, at: int | None) -> None:
    net, seen = make_net(), {}
    for step, _ in steps_by_hand(net, 9):
        if step % 3 == 0:
            seen[step] = share(net)
    best = sorted(seen, key=lambda step: (-seen[step], step))
    assert len(set(seen.values())) < len(seen)
    options: dict[str, Any] = {
        "more": {"metrics": {"near": rounded}},
        "validation": {"every": "3 steps", "metric": "near", "mode": "max"},
        "checkpoint": {"keep_best": keep, "keep_last": 1, "every": None},
    }
    run = fit(**options) if at is None else resumed(at, **options)

    assert_same(seen, evaluations(run, "val/near"))
    assert kept(run) == sorted({*best[:keep], 45})
    assert run.best.step == best[0]


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_equal_values_are_no_improvement(patience: int) -> None:
    net, stop = make_net(), EarlyStop(patience, sign=-1)
    for step, _ in steps_by_hand(net, 9):
        if (step % 3 == 0 or step == 45) and stop.stops(step, share(net)):
            break
    run = fit(
        more={"metrics": {"near": rounded}},
        validation={"every": "3 steps", "metric": "near", "mode": "max"},
        early_stop=patience,
    )

    assert_same(stop.seen, evaluations(run, "val/near"))
    assert run.last.step == max(stop.seen)
    assert run.best.step == stop.best_steps()[0]


@pytest.mark.parametrize("at", [4, 10, 16])
@pytest.mark.parametrize("kind", ["rel", "abs"])
def test_plateau_with_pauses_falls_at_the_steps_of_torch_after_a_resume(kind: str, at: int) -> None:
    net, seen, rates, step = make_net(), {}, [], 0
    optimizer = torch.optim.SGD(net.parameters(), lr=HIGH)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode="max",
        factor=0.7,
        patience=1,
        threshold=0.02,
        threshold_mode=kind,
        cooldown=2,
    )
    for _ in range(9):
        for x, y in in_batches(7, *TRAIN):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            step += 1
            if step % 2 == 0 or step == 45:
                seen[step] = -loss_of(net)
                plateau.step(seen[step])
                rates.append(optimizer.param_groups[0]["lr"])
    own = make_net()
    run = resumed(
        at,
        own,
        more={"metrics": {"score": lambda o, t: -(o - t).square().mean()}},
        validation={"every": "2 steps", "metric": "score", "mode": "max"},
        schedule={
            "name": "reduce_on_plateau",
            **{"factor": 0.7, "patience": 1, "threshold": 0.02},
            **{"threshold_mode": kind, "cooldown": 2},
        },
    )

    assert len(set(rates)) > 2
    assert_same(seen, evaluations(run, "val/score"))
    assert_same(weights(net), saved(run, "last"))


def infinite_until(count: int) -> Any:
    """Return a metric that is infinite at the first evaluations after the start of the run."""
    started: list[bool] = []
    calls: list[bool] = []

    class Start(surestep.Callback):
        def on_start(self, state: Any) -> None:
            started.append(True)

    def metric(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        if started:
            calls.append(True)
        total = (outputs - targets).square().sum()
        return (total * math.inf if started and len(calls) <= count else total), len(targets)

    return Start(), metric


@pytest.mark.parametrize("count", [1, 2, 3])
def test_infinite_values_are_no_improvement_for_early_stopping(count: int) -> None:
    net, stop = make_net(), EarlyStop(3)
    for step, _ in steps_by_hand(net, 9):
        if step % 5 == 0:
            value = math.inf if step <= 5 * count else loss_of(net)
            if stop.stops(step, value):
                break
    start, metric = infinite_until(count)
    task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL, metrics={"own": metric})
    config = plain_config(
        epochs=9,
        batch_size=7,
        optim={"lr": HIGH},
        validation={"metric": "own", "mode": "min", "batch_size": 64},
        early_stop=3,
    )
    run = surestep.Trainer(task, config, run="run", callbacks=[start]).fit()

    assert_same(stop.seen, evaluations(run, "val/own"))
    assert run.last.step == max(stop.seen)


@pytest.mark.parametrize("count", [2, 3])
def test_infinite_values_count_for_a_plateau_as_for_torch(count: int) -> None:
    net, step = make_net(), 0
    optimizer = torch.optim.SGD(net.parameters(), lr=HIGH)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    for _ in range(6):
        for x, y in in_batches(7, *TRAIN):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            step += 1
        plateau.step(math.inf if step <= 5 * count else loss_of(net))
    start, metric = infinite_until(count)
    own = make_net()
    task = surestep.Task(own, nn.MSELoss(), train=TRAIN, val=VAL, metrics={"own": metric})
    config = plain_config(
        epochs=6,
        batch_size=7,
        optim={"lr": HIGH},
        validation={"metric": "own", "mode": "min", "batch_size": 64},
        schedule={"name": "reduce_on_plateau", "factor": 0.5, "patience": 1},
    )
    surestep.Trainer(task, config, run="run", callbacks=[start]).fit()

    assert_same(weights(net), weights(own))


def test_part_of_a_collection_with_a_prefix_says_what_is_better() -> None:
    net, stop = make_net(), EarlyStop(2, 0.01)
    for step, _ in steps_by_hand(net, 9):
        if step % 4 == 0 or step == 45:
            with torch.no_grad():
                value = float((net(OTHER[0]) - OTHER[1]).abs().mean())
            if stop.stops(step, value):
                break
    errors = MetricCollection(
        {"mse": MeanSquaredError(), "mae": MeanAbsoluteError()}, prefix="of_"
    ).set_dtype(torch.float64)
    run = resumed(
        6,
        val={"one": VAL, "two": OTHER},
        more={"metrics": {"all": errors}},
        validation={"every": "4 steps", "metric": "two/all_of_mae", "batch_size": 3},
        early_stop={"patience": 2, "min_delta": 0.01},
    )

    assert_same(stop.seen, evaluations(run, "two/all_of_mae"))
    assert run.best.step == stop.best_steps()[0]
    assert run.last.step == max(stop.seen)


def test_evaluations_that_a_callback_asks_for_count_once() -> None:
    net, stop = make_net(), EarlyStop(4)
    for step, _ in steps_by_hand(net, 9):
        if (step % 4 == 0 or step % 6 == 0 or step == 45) and stop.stops(step, loss_of(net)):
            break

    class Ask(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> Any:
            return surestep.Request.EVALUATE if state.progress.step % 6 == 0 else None

    task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL)
    config = plain_config(
        epochs=9,
        batch_size=7,
        optim={"lr": HIGH},
        validation={"every": "4 steps"},
        early_stop=4,
        checkpoint={"keep_best": 2, "keep_last": 1, "every": None},
    )
    run = surestep.Trainer(task, config, run="run", callbacks=[Ask()]).fit()

    assert_same(stop.seen, evaluations(run))
    assert kept(run) == sorted({*stop.best_steps()[:2], max(stop.seen)})


@pytest.mark.parametrize("every", ["3 steps", "4 steps", "1.4 epochs"])
def test_kept_are_the_last_ones_the_best_and_milestones(every: str) -> None:
    net, stop, saves = make_net(), EarlyStop(), []
    period = {"3 steps": 3, "4 steps": 4, "1.4 epochs": 7}[every]
    for step, _ in steps_by_hand(net, 9):
        if step % 2 == 0 or step == 45:
            stop.stops(step, loss_of(net))
            if step in stop.best_steps()[:2]:
                saves.append(step)
        if step % period == 0 or step == 45:
            saves.append(step)
    saves = sorted(set(saves))
    milestones = {next((s for s in saves if s >= m), 0) for m in range(11, 46, 11)}
    wanted = {*stop.best_steps()[:2], *saves[-2:]}
    run = fit(
        validation={"every": "2 steps"},
        checkpoint={"every": every, "keep_last": 2, "keep_best": 2, "keep_every": "11 steps"},
    )

    assert wanted | (milestones & set(saves)) >= set(kept(run)) >= wanted
    assert set(kept(run)) - wanted <= milestones
    assert len(set(kept(run)) | {0}) >= 4


def test_longer_run_goes_on_with_the_best_and_the_patience_so_far() -> None:
    net, stop, at_first_end = make_net(), EarlyStop(4, 0.02), 15
    for step, _ in steps_by_hand(net, 9):
        if step % 3 == 0 and stop.stops(step, loss_of(net)):
            break
    for epochs in (3, 9):
        config = plain_config(
            epochs=epochs,
            batch_size=7,
            optim={"lr": HIGH},
            validation={"every": "3 steps"},
            early_stop={"patience": 4, "min_delta": 0.02},
        )
        task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL)
        run = surestep.Trainer(task, config, run="run", allow=("epochs",)).fit()

    assert max(stop.seen) > at_first_end
    assert_same(stop.seen, evaluations(run))
    assert run.best.step == stop.best_steps()[0]
    assert_same(weights(net), saved(run, "last"))


@pytest.mark.parametrize("keep", [1, 2])
def test_own_loop_that_saves_keeps_the_best_of_its_checkpoints_after_a_resume(keep: int) -> None:
    net, stop = make_net(), EarlyStop()
    for step, _ in steps_by_hand(net, 4):
        if step % 3 == 0:
            stop.stops(step, loss_of(net))
    saves = [step for step in stop.seen if step % 2 == 1]  # every second evaluation is saved
    best = [step for step in stop.best_steps() if step in saves][:keep]
    config = plain_config(
        epochs=4,
        batch_size=7,
        optim={"lr": HIGH},
        checkpoint={"keep_best": keep, "keep_last": 1},
    )
    for last in (9, 20):
        task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL)
        session = prepare(task, config, run="run")
        for result in session.steps():
            if result.step % 3 == 0:
                session.evaluate()
            if result.step in saves:
                session.save()
            if result.step == last:
                break
        state = session.state.best
        session.close()
    run = session.run

    assert_same(
        [stop.best, stop.best_steps()[0], stop.bad], [state.best, state.best_step, state.since_best]
    )
    assert kept(run) == sorted({*best, max(saves)})


@pytest.mark.parametrize("limit", [1, 2])
def test_best_of_limited_evaluations_is_of_the_first_batches(limit: int) -> None:
    net, stop = make_net(), EarlyStop(2)
    part = (OTHER[0][: 4 * limit], OTHER[1][: 4 * limit])
    for step, _ in steps_by_hand(net, 9):
        if step % 5 == 0 and stop.stops(step, loss_of(net, part)):
            break
    run = resumed(
        7,
        val={"one": OTHER, "two": VAL},
        validation={"batch_size": 4},
        limit_val_batches=limit,
        early_stop=2,
    )

    assert_same(stop.seen, evaluations(run, "one/loss"))
    assert run.best.step == stop.best_steps()[0]


def test_one_of_two_losses_decides() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = make_net(), make_net()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"one": self.one(x), "two": self.two(x)}

    def made(data: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"x": data[0], "one": data[1], "two": data[1].abs()}

    net, stop, step = Heads(), EarlyStop(2, 0.01), 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(9):
        for x, y in in_batches(7, *TRAIN):
            optimizer.zero_grad()
            found = net(x)
            loss = nn.functional.mse_loss(found["one"], y)
            (loss + 3 * nn.functional.l1_loss(found["two"], y.abs())).backward()
            optimizer.step()
            step += 1
        with torch.no_grad():
            value = float(nn.functional.l1_loss(net.two(VAL[0]), VAL[1].abs()))
        if stop.stops(step, value):
            break
    task = surestep.Task(
        Heads(),
        {"one": nn.MSELoss(), "two": nn.L1Loss()},
        loss_weights={"two": 3.0},
        train=made(TRAIN),
        val=made(VAL),
    )
    config = plain_config(
        epochs=9,
        batch_size=7,
        optim={"lr": 0.5},
        validation={"metric": "loss_two", "batch_size": 3},
        early_stop={"patience": 2, "min_delta": 0.01},
    )
    run = surestep.Trainer(task, config, run="run").fit()

    assert_same(stop.seen, evaluations(run, "val/loss_two"))
    assert run.best.step == stop.best_steps()[0]
