"""Learning rates and momenta that a callback or your own loop sets in the parameter groups."""

import copy
import signal
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import surestep
from surestep.base.errors import Preempted

torch.manual_seed(0)
X, Y = torch.randn(70, 4), torch.randn(70, 1)
SIZE = 7
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0, "weight_decay": 0}


def build():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def config(schedule="constant", **options):
    usual = {"epochs": 4, "optim": {**SGD, "momentum": 0.9}}
    return surestep.Config(
        batch_size=SIZE,
        max_grad_norm=None,
        schedule=schedule,
        data={"shuffle": False},
        logging={"progress": "quiet"},
        **{**usual, **options},
    )


def halve(optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def task(net, **parts):
    return surestep.Task(net, nn.MSELoss(), train=(X, Y), val=(X[:20], Y[:20]), **parts)


class Halve(surestep.Callback):
    """Halves the rates after some steps."""

    def __init__(self, steps=(11, 25)):
        self.steps = steps

    def on_step(self, state, result):
        if result.step in self.steps:
            halve(state.optimizer)


class AtEvaluation(surestep.Callback):
    """Sets the rate and the momentum after each evaluation."""

    def on_evaluate(self, state, metrics):
        for group in state.optimizer.param_groups:
            group["lr"] *= 0.7
            if state.progress.step == 20:
                group["momentum"] = 0.5


class AtStart(surestep.Callback):
    """Sets the rate whenever a process starts."""

    def on_start(self, state):
        state.optimizer.param_groups[0]["lr"] = 0.03


def train_plainly(halved=(11, 25)):
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = 0
    for _ in range(4):
        for first in range(0, len(X), SIZE):
            optimizer.zero_grad()
            F.mse_loss(net(X[first : first + SIZE]), Y[first : first + SIZE]).backward()
            optimizer.step()
            step += 1
            if step in halved:
                halve(optimizer)
    return net


def assert_same(net, other):
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_rate_of_a_callback_equals_a_plain_loop_to_the_last_bit(tmp_path):
    net = build()
    run = surestep.Trainer(
        task(net), config(optim=SGD), run=tmp_path / "r", callbacks=[Halve()]
    ).fit()
    assert_same(net, train_plainly())
    rates = [lr for event in run.events() if event["event"] == "steps" for lr in event["lr"]]
    assert rates == [0.1] * 11 + [0.05] * 14 + [0.025] * 15


def test_own_loop_sets_the_rate():
    net = build()
    with surestep.prepare(task(net), config(optim=SGD), run=None) as session:
        for result in session.steps():
            if result.step in (11, 25):
                halve(session.optimizer)
    assert_same(net, train_plainly())


def test_rate_follows_the_schedule_from_where_it_was_set():
    rates = {}
    for factor in (1.0, 0.5):
        net = build()
        options = config({"name": "cosine", "warmup": 5}, optim={"lr": 0.1})
        with surestep.prepare(task(net), options, run=None) as session:
            rates[factor] = []
            for result in session.steps():
                rates[factor].append(result.lr)
                if result.step == 11:
                    session.optimizer.param_groups[0]["lr"] *= factor
    assert rates[0.5] == pytest.approx(rates[1.0][:11] + [0.5 * lr for lr in rates[1.0][11:]])


def fit(schedule, run, *callbacks):
    net = build()
    surestep.Trainer(task(net), config(schedule), run=run, callbacks=callbacks).fit()
    return net


@cache
def fit_without_callbacks(schedule):
    return fit(schedule, None)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one_cycle"])
@pytest.mark.parametrize("kind", [Halve, AtEvaluation, AtStart])
def test_resumed_run_is_bitwise_the_same(tmp_path, schedule, kind):
    """It is stopped before, at and after a step that sets the rate, and within an epoch later."""

    class Stop(surestep.Callback):
        def on_step(self, state, result):
            if result.step in (10, 11, 12, 30):
                signal.raise_signal(signal.SIGTERM)

    whole = fit(schedule, tmp_path / "whole", kind())
    for _ in range(4):
        with pytest.raises(Preempted):
            fit(schedule, tmp_path / "stopped", kind(), Stop())
    assert_same(fit(schedule, tmp_path / "stopped", kind()), whole)
    assert not torch.equal(fit_without_callbacks(schedule)[0].weight, whole[0].weight)


def test_each_optimizer_of_a_manual_step_has_its_own_rate(tmp_path):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

    def step(manual_step):
        for name in ("a", "b"):
            for micro in manual_step.micro_batches(name):
                x, y = micro.args
                loss = (manual_step.models[name](x) - y).square().mean()
                manual_step.backward(loss, micro)
            manual_step.step(name)

    class Set(surestep.Callback):
        def on_step(self, state, result):
            if result.step == 3:
                for group in state.optimizers["b"].param_groups:
                    group["lr"] = 0.01

    sgd = surestep.Optim(name="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
    net = Pair()
    plain = copy.deepcopy(net)
    job = surestep.Task(net, train=(X, Y), step=step, optimizers={"a": sgd, "b": sgd})
    options = config(epochs=None, max_steps=6, optim=None)
    surestep.Trainer(job, options, run=tmp_path / "r", callbacks=[Set()]).fit()
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (plain.a, plain.b)]
    for number in range(6):
        x, y = X[number * SIZE : (number + 1) * SIZE], Y[number * SIZE : (number + 1) * SIZE]
        for part, optimizer in zip((plain.a, plain.b), optimizers, strict=True):
            optimizer.zero_grad()
            (part(x) - y).square().mean().backward()
            optimizer.step()
        if number == 2:
            optimizers[1].param_groups[0]["lr"] = 0.01
    for value, expected in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
