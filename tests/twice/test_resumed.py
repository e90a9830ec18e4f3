"""Runs in several parts: the same numbers, decisions and checkpoints as in one part."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import Preempted
from tests.twice.compare import assert_same, plain_config, weights

N = 47
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2]).clone()
VAL = (X[:17], Y[:17])
HARD = (X[:17], Y[:17] + torch.arange(17, dtype=torch.float64)[:, None])  # soon at its best


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 1).double()


def error_of(net, data=VAL):
    """The mean squared error, computed by hand in eval mode."""
    net.eval()
    with torch.no_grad():
        return float(nn.functional.mse_loss(net(data[0]), data[1]))


class Pause(surestep.Callback):
    """Stops the run after a step, as a signal does."""

    def __init__(self, step):
        self.step = step

    def on_step(self, state, result):
        return surestep.Request.PAUSE if state.progress.step == self.step else None


class Watch(surestep.Callback):
    """Notes what an evaluation found and decided."""

    def __init__(self, seen):
        self.seen = seen

    def on_evaluate(self, state, metrics):
        best, rates = (
            state.best,
            [g["lr"] for o in state.optimizers.values() for g in o.param_groups],
        )
        self.seen.append((state.progress.step, metrics, best.best, best.since_best, rates))


def in_parts(make, config, stops, folder, *, callbacks=list, **more):
    """Run to each stop and then to the end; return the run, the model and the evaluations."""
    seen = []
    for stop in (*stops, None):
        task = make()
        used = [*callbacks(), Watch(seen), *([] if stop is None else [Pause(stop)])]
        trainer = surestep.Trainer(task, config, run=folder, callbacks=used, **more)
        with suppress(Preempted):
            trainer.fit()
        trainer.close()
    return surestep.Run(folder), task.model, seen


def assert_same_in_parts(make, config, stops, **more):
    whole, net, seen = in_parts(make, config, (), "runs/whole", **more)
    parts, again, also = in_parts(make, config, stops, "runs/parts", **more)
    assert_same(seen, also, exact=True)
    assert_same(weights(net), weights(again), exact=True)
    ends = [(r.best.step, r.best.metrics, r.best.evaluated, r.last.step) for r in (whole, parts)]
    assert_same(*ends, exact=True)
    return whole, net, seen


def config_to(stop, **options):
    return plain_config(max_steps=stop, batch_size=7, **({"validation": {"every": 2}} | options))


EXPONENTIAL = {"name": "exponential", "gamma": 0.9}
STEP = {"name": "step", "step_size": "1 epoch", "gamma": 0.5}
SCHEDULES = ["constant", "cosine", "linear", "reduce_on_plateau", EXPONENTIAL, "polynomial"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_early_stop_and_schedule_continue_their_counters(schedule):
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), val=HARD)

    config = config_to(
        60,
        schedule=schedule,
        early_stop={"patience": 4, "min_delta": 0.02},
        average={"kind": "ema", "decay": 0.9},
    )
    run, _, seen = assert_same_in_parts(make, config, (3, 15, 16))
    assert run.last.step == seen[-1][0]
    values = [metrics["val/loss"] for _, metrics, *_ in seen]
    best, since = values[0], 0
    for value, (_, _, found, bad, _) in zip(values[1:], seen[1:], strict=True):
        best, since = (value, 0) if value < best - 0.02 else (best, since + 1)
        assert_same([best, since], [found, bad])


class Cut(surestep.Callback):
    """Halves the learning rate twice, one time in the last step before a stop."""

    def on_step(self, state, result):
        if state.progress.step in (3, 11):
            for group in state.optimizer.param_groups:
                group["lr"] *= 0.5


def test_learning_rate_that_a_callback_set_is_kept():
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), val=VAL)

    _, net, seen = assert_same_in_parts(make, config_to(20), (5, 11, 12), callbacks=lambda: [Cut()])
    plain = linear()
    optimizer, values = torch.optim.SGD(plain.parameters(), lr=0.1), []
    for step in range(1, 21):
        first = (step - 1) % 7 * 7
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(X[first : first + 7]), Y[first : first + 7]).backward()
        optimizer.step()
        if step in (3, 11):
            optimizer.param_groups[0]["lr"] *= 0.5
        if step % 2 == 0:
            values.append(error_of(plain))
    assert_same(weights(plain), weights(net))
    assert_same(values, [metrics["val/loss"] for _, metrics, *_ in seen])


@pytest.mark.parametrize("schedule", ["cosine", "linear", STEP])
def test_learning_rate_that_a_callback_set_under_a_schedule_is_kept(schedule):
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), val=VAL)

    config = config_to(20, schedule=schedule)
    assert_same_in_parts(make, config, (3, 5, 11, 12), callbacks=lambda: [Cut()])


def two_steps(manual_step):
    one, two = manual_step.models["one"], manual_step.models["two"]
    for micro in manual_step.micro_batches("one"):
        x, y = micro.args
        noise = manual_step.randn(micro, 1)
        manual_step.backward(nn.functional.mse_loss(one(x) + noise, y), micro)
    manual_step.step("one")
    if manual_step.index % 3 == 2:
        for micro in manual_step.micro_batches("two"):
            x, _ = micro.args
            scaled = two(x) * torch.rand(())
            manual_step.backward(nn.functional.mse_loss(scaled, one(x).detach()), micro)
        manual_step.step("two")


def test_two_optimizers_with_steps_of_their_own_continue():
    schedule = surestep.Schedule(name="cosine")
    optimizers = {
        "one": surestep.Optim(name="adamw", lr=0.01),
        "two": surestep.Optim(name="sgd", lr=0.1, momentum=0.9),
    }

    def make():
        net = nn.ModuleDict({"one": linear(0), "two": linear(1)})
        return surestep.Task(net, train=(X, Y), step=two_steps, optimizers=optimizers)

    config = surestep.Config(
        max_steps=20, batch_size=7, schedule=schedule, logging={"progress": "quiet"}
    )
    _, net, _ = in_parts(make, config, (), "runs/whole")
    for stops in ((4, 5, 11), (1, 19)):
        _, again, _ = in_parts(make, config, stops, f"runs/{stops[0]}")
        assert_same(weights(net), weights(again), exact=True)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 1)
        self.net = nn.Sequential(*layers).double()

    def forward(self, x):
        return self.net(x)


AVERAGES = [
    ({"kind": "ema", "decay": 0.8}, {}),
    ({"kind": "swa", "start": "30%"}, {}),
    ({"kind": "swa", "start": "30%", "every": "3 steps"}, {"weights": "both"}),
]


@pytest.mark.parametrize(("average", "measured"), AVERAGES)
def test_average_continues_and_its_best_is_what_was_evaluated(average, measured):
    def make():
        sets = {"one": VAL, "two": (X[20:31], Y[20:31])}
        return surestep.Task(Normed(), nn.MSELoss(), train=(X[:44], Y[:44]), val=sets)

    validation = {"every": 3, "metric": "two/loss"} | measured
    config = config_to(20, average=average, validation=validation, checkpoint={"keep_best": 2})
    run, _, _ = assert_same_in_parts(make, config, (4, 9, 11, 19))
    net = Normed()
    run.load_model(net)
    assert_same(run.best.metrics["one/loss"], error_of(net))
    assert_same(run.best.metrics["two/loss"], error_of(net, (X[20:31], Y[20:31])))


def test_fork_continues_as_a_loop_whose_learning_rate_is_changed():
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), val=VAL)

    every = {"every": 3}
    in_parts(make, config_to(12, validation=every), (5,), "runs/parent")
    lower = config_to(20, validation=every, optim={"lr": 0.01})
    from_ = "runs/parent@last"
    run, net, seen = in_parts(make, lower, (14,), "runs/fork", from_=from_)
    plain, values = linear(), {}
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(1, 21):
        first = (step - 1) % 7 * 7
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(X[first : first + 7]), Y[first : first + 7]).backward()
        optimizer.step()
        if step == 12:
            optimizer.param_groups[0]["lr"] = 0.01
        if step % 3 == 0 or step == 20:
            values[step] = error_of(plain)
    assert_same(weights(plain), weights(net))
    assert_same([values[step] for step in (15, 18, 20)], [m["val/loss"] for _, m, *_ in seen])
    late = {step: value for step, value in values.items() if step >= 12}
    assert run.best.step == min(late, key=late.get)
    assert_same(values[run.best.step], run.best.metrics["val/loss"])


def test_other_limit_of_validation_starts_a_new_best():
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), val=VAL)

    validation = {"every": 2, "batch_size": 5}
    part, full = (
        config_to(stop, limit_val_batches=limit, validation=validation)
        for stop, limit in ((8, 1), (16, None))
    )
    first, *_ = in_parts(make, part, (3,), "runs/limit")
    net = linear()
    first.load_model(net)
    assert_same(error_of(net, (X[:5], Y[:5])), first.best.metrics["val/loss"])
    allow = ("limit_val_batches",)
    run, _, more = in_parts(make, full, (), "runs/limit", allow=allow)
    assert run.best.step in (10, 12, 14, 16)
    assert_same([more[0][1]["val/loss"], 0], [more[0][2], more[0][3]])
    run.load_model(net)
    assert_same(error_of(net), run.best.metrics["val/loss"])


def test_rollback_after_a_spike_is_the_same_in_parts_and_skips_its_steps():
    count = 190
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count * 7, 4, generator=generator, dtype=torch.float64)
    y = x[:, :1] - 2 * x[:, 1:2]
    y = y + 0.1 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    y[150 * 7 : 151 * 7] += 1e4

    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(x, y), val=VAL)

    config = config_to(
        count,
        validation={"every": 20},
        on_spike="rollback",
        checkpoint={"every": "20 steps", "keep_best": 2},
        optim={"lr": 0.01},
        logging={"every": "5 steps"},
    )
    run, net, _ = assert_same_in_parts(make, config, (100, 148, 152, 170))
    (back,) = [event for event in run.events() if event["event"] == "rollback"]
    first, last = back["skipped_steps"]
    plain = linear()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    for step in range(count):
        if first <= step + 1 <= last:
            continue
        rows = slice(7 * step, 7 * step + 7)
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x[rows]), y[rows]).backward()
        optimizer.step()
    assert_same(weights(plain), weights(net))


def test_own_loop_continues_its_best_and_its_counters():
    def run_to(stops, folder):
        found = []
        for stop in stops:
            task = surestep.Task(linear(), nn.MSELoss(), train=(X, Y), val=HARD, test=VAL)
            config = config_to(25, schedule="reduce_on_plateau")
            with surestep.prepare(task, config, run=folder) as session:
                for result in session.steps():
                    if result.step % 4 == 0:
                        session.evaluate("test")
                        found.append(session.evaluate())
                        best = session.state.best
                        found.append([best.best, best.best_step, best.since_best, result.lr])
                    if result.step == stop:
                        session.save()
                        break
        return found, weights(task.model)

    assert_same(run_to((25,), "runs/whole"), run_to((4, 7, 8, 17, 25), "runs/parts"), exact=True)


def test_validation_before_the_first_step_is_not_repeated():
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), val=VAL)

    config = config_to(9, validation={"every": 4, "on_start": True})
    _, _, seen = assert_same_in_parts(make, config, (1, 4, 8))
    assert [step for step, *_ in seen] == [0, 4, 8, 9]
    assert_same(error_of(linear()), seen[0][1]["val/loss"])


def test_longer_run_after_its_end_equals_one_that_was_long_at_once():
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), val=VAL)

    for stop in (8, 15, 24):
        run, net, _ = in_parts(make, config_to(stop), (), "runs/longer")
    whole, plain, _ = in_parts(make, config_to(24), (), "runs/whole")
    assert_same(weights(plain), weights(net), exact=True)
    assert (run.best.step, run.best.metrics) == (whole.best.step, whole.best.metrics)
