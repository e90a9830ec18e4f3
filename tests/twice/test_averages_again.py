"""Averages: shared buffers, steps that update nothing, own loops, and what is loaded later."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

import surestep
from surestep.base.errors import Preempted
from tests.twice.compare import assert_same, in_batches, prepare, weights
from tests.twice.test_averages import (
    EVEN,
    LR,
    TRAIN,
    VAL,
    config,
    ema,
    evaluations,
    fit,
    loss_of,
    make_moving,
    make_net,
    saved,
    steps_by_hand,
)

EMA = {"kind": "ema", "decay": 0.8, "warmup": False}
SWA = {"kind": "swa", "start": 0, "every": "1 epoch"}


class Part(nn.Module):
    """Divides by a buffer, which it may share with another part."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).double()
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.8).add_(hidden.abs().mean(dim=0), alpha=0.2)
        return hidden.tanh() / self.scale.clone()


class Shared(nn.Module):
    """Two parts with one buffer, of which the model keeps one more reference and a view."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        scale = torch.ones(4, dtype=torch.float64)
        self.first, self.second = Part(scale), Part(scale)
        self.last = nn.Linear(4, 1).double()
        self.table = [scale]
        self.half = scale[:2]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x))
        extra = self.half.clone().sum() if self.table[0] is not None else 0.0
        return self.last(hidden) * self.table[0].clone().mean() + extra


@pytest.mark.parametrize("net_type", [Shared])
def test_buffer_with_several_owners_is_averaged_in_all_of_them(net_type: Any) -> None:
    net, seen = net_type(), {}
    average, buffer = ema(net, 0.8), None
    for step in steps_by_hand(net, 2, TRAIN, lr=0.02):
        average.update_parameters(net)
        scale = net.first.scale
        buffer = scale.clone() if buffer is None else 0.8 * buffer + 0.2 * scale
        if step % 7 == 0:
            raw, kept = weights(net), scale.clone()
            with torch.no_grad():
                for weight, averaged in zip(net.parameters(), average.parameters(), strict=True):
                    weight.copy_(averaged)
                scale.copy_(buffer)
                seen[step] = loss_of(net)
                net.load_state_dict(raw)
                assert torch.equal(net.first.scale, kept)
    ours = net_type()
    run = fit(ours, EMA, TRAIN, epochs=2, optim={"lr": 0.02})

    assert_same(seen, evaluations(run))
    assert_same(weights(net), weights(ours))
    assert ours.first.scale is ours.second.scale is ours.table[0]


@pytest.mark.parametrize("bad", [16, 33])
def test_mean_of_epochs_is_of_their_ends_after_skipped_steps(bad: int) -> None:
    """Also if the last step of an epoch, of sample 33, is skipped."""
    x = EVEN[0].clone()
    x[bad] = torch.nan
    net, step = make_net(), 0
    average, seen = AveragedModel(net), {}
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(4):
        for a, b in in_batches(7, x, EVEN[1]):
            step += 1
            if a.isfinite().all():
                optimizer.zero_grad()
                nn.functional.mse_loss(net(a), b).backward()
                optimizer.step()
        average.update_parameters(net)
        seen[step] = loss_of(average)
    run = fit(make_net(), SWA, (x, EVEN[1]), epochs=4, on_nonfinite="skip")

    assert_same(seen, evaluations(run))
    assert_same(weights(average.module), saved(run, "average", make_net))


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_average_from_three_quarters_on_if_batches_of_each_epoch_have_no_targets(kind: str) -> None:
    """13 of 18 steps are three quarters of the run, of which 12 have targets."""
    x, y = X_TAGS, Y_TAGS
    net, step, updates = make_tagger(), 0, []
    average = AveragedModel(net) if kind == "swa" else ema(net, 0.8)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(3):
        for a, b in in_batches(7, x, y):
            step += 1
            if (b != -100).any():
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(a), b).backward()
                optimizer.step()
                if step > 13:
                    average.update_parameters(net)
                    updates.append(step)
    assert updates == [16, 17, 18]
    task = surestep.Task(make_tagger(), nn.CrossEntropyLoss(), train=(x, y), val=(x, y))
    averaging = "swa" if kind == "swa" else EMA | {"start": "75%"}
    run = surestep.Trainer(task, config(averaging, epochs=3), run="run").fit()

    assert_same(weights(average.module), saved(run, "average", make_tagger))


X_TAGS = torch.randn(41, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
Y_TAGS = (X_TAGS[:, 0] > 0).long()
Y_TAGS[7:21] = -100  # two batches of 7


def make_tagger() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2).double()


@pytest.mark.parametrize("at", [4, 9, 10])
def test_mean_of_epochs_goes_on_after_skipped_steps_and_a_resume(at: int) -> None:
    x = EVEN[0].clone()
    x[9] = torch.nan

    class Pause(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> Any:
            return surestep.Request.PAUSE if state.progress.step == at else None

    found = []
    for name, callbacks in (("whole", []), ("parts", [Pause()])):
        task = surestep.Task(make_moving(), nn.MSELoss(), train=(x, EVEN[1]), val=VAL)
        options = config(SWA, on_nonfinite="skip", validation={"every": "2 steps"})
        trainer = surestep.Trainer(task, options, run=name, callbacks=callbacks)
        if callbacks:
            with pytest.raises(Preempted):
                trainer.fit()
            task = surestep.Task(make_moving(), nn.MSELoss(), train=(x, EVEN[1]), val=VAL)
            trainer = surestep.Trainer(task, options, run=name)
        run = trainer.fit()
        found.append([saved(run, "average", make_moving), evaluations(run)])
    assert_same(found[0], found[1], exact=True)


def test_best_before_the_first_update_is_of_the_weights_and_the_newest_average_is_loaded() -> None:
    net, seen, states = make_net(), {}, {}
    average = ema(net, 0.8)
    for step in steps_by_hand(net, 3, lr=0.7):
        if step > 10:
            average.update_parameters(net)
        if step % 2 == 0 or step == 21:
            used = net if step <= 10 else average.module
            seen[step], states[step] = loss_of(used), weights(used)
    run = fit(
        make_net(),
        EMA | {"start": "10 steps"},
        optim={"lr": 0.7},
        validation={"every": "2 steps"},
    )
    best = min(seen, key=seen.__getitem__)

    assert_same(seen, evaluations(run))
    assert run.best.step == best
    assert_same(states[best], saved(run, "best", make_net))
    assert_same(weights(average.module), saved(run, "average", make_net))
    assert_same(weights(net), saved(run, "last", make_net))


@pytest.mark.parametrize("which", ["best", "last", "average"])
def test_checkpoint_of_a_mean_with_statistics_is_evaluated_and_predicted(which: Any) -> None:
    net, bests = make_moving(), {}
    average = AveragedModel(net)
    for step in steps_by_hand(net, 4, EVEN):
        if step % 5 == 0:
            average.update_parameters(net)
            other = copy.deepcopy(average.module)
            for name in ("scale", "count"):
                getattr(other, name).copy_(getattr(net, name))
            kept = weights(other)
            update_bn(in_batches(7, EVEN[0]), other)
            for name in ("scale", "count"):
                getattr(other, name).copy_(kept[name])
            bests[step] = (loss_of(other), other)
    best = min(bests.values(), key=lambda pair: pair[0])[1]
    plain = {"best": best, "last": net, "average": bests[20][1]}[which].eval()
    task = surestep.Task(make_moving(), nn.MSELoss(), train=EVEN, val={"own": VAL})
    trainer = surestep.Trainer(task, config(SWA, epochs=4), run="run")
    trainer.fit()

    assert_same(loss_of(plain), trainer.evaluate("own", which)["own/loss"])
    with torch.no_grad():
        outputs = plain(VAL[0])
    assert_same(outputs, torch.as_tensor(trainer.predict("own", which)["output"]))
    trainer.close()


def test_average_of_lazy_modules_begins_with_their_first_weights() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(1)).double()

    ours = make()
    task = surestep.Task(ours, nn.MSELoss(), train=TRAIN, val=VAL)
    session = prepare(task, config(EMA))
    net = make_net()
    net.load_state_dict(weights(ours))
    average = ema(net, 0.8)
    for _ in steps_by_hand(net, 3):
        average.update_parameters(net)
    list(session.steps())
    assert_same(weights(net), weights(ours))
    assert_same(loss_of(average), session.evaluate()["val/loss"])


def test_average_in_an_own_loop_with_own_batches() -> None:
    net, ours = make_net(), make_net()
    average = ema(net, 0.8)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    task = surestep.Task(ours, nn.MSELoss(), train=TRAIN, val=VAL)
    session = prepare(task, config(EMA, epochs=4))
    for first in (0, 11, 3, 20):
        x, y = TRAIN[0][first : first + 13], TRAIN[1][first : first + 13]
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        average.update_parameters(net)
        session.train_step([(x[:5], y[:5]), (x[5:], y[5:])])
        assert_same(loss_of(average), session.evaluate()["val/loss"])
    assert_same(weights(net), weights(ours))


def test_weights_that_a_callback_limits_after_each_step_are_averaged() -> None:
    net, seen = make_net(), {}
    average = ema(net, 0.8)
    for step in steps_by_hand(net, 3):
        with torch.no_grad():
            for weight in net.parameters():
                weight.clamp_(-0.3, 0.3)
        average.update_parameters(net)
        if step % 7 == 0:
            seen[step] = loss_of(average)

    class Limit(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> None:
            with torch.no_grad():
                for weight in state.model.parameters():
                    weight.clamp_(-0.3, 0.3)

    task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL)
    run = surestep.Trainer(task, config(EMA), run="run", callbacks=[Limit()]).fit()
    assert_same(seen, evaluations(run))


def test_buffers_that_are_copied_follow_the_model_in_a_mean() -> None:
    net, seen = make_moving(), {}
    average = AveragedModel(net)
    for step in steps_by_hand(net, 3, EVEN):
        if step % 5 == 0:
            average.update_parameters(net)
            buffers = {name: b.clone() for name, b in net.named_buffers()}
            average.module.load_state_dict(weights(average.module) | buffers)
            seen[step] = loss_of(average)
    run = fit(make_moving(), SWA | {"buffers": "copy"}, EVEN)
    assert_same(seen, evaluations(run))


class Teacher(nn.Module):
    """A student and a frozen copy of its body that follows it slowly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.student, self.last = nn.Linear(4, 3).double(), nn.Linear(6, 1).double()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for slow, fast in zip(
                    self.teacher.parameters(), self.student.parameters(), strict=True
                ):
                    slow.lerp_(fast, 0.3)
        return self.last(torch.cat([self.student(x), self.teacher(x)], 1).tanh())


def test_frozen_weights_that_the_model_changes_itself_are_those_of_the_model() -> None:
    """The average is one of the trained weights, as docs/averages.md says."""
    net, seen = Teacher(), {}
    average = ema(net, 0.8)
    for step in steps_by_hand(net, 3):
        average.update_parameters(net)
        average.module.teacher.load_state_dict(net.teacher.state_dict())
        if step % 7 == 0:
            seen[step] = loss_of(average)
    run = fit(Teacher(), EMA)
    assert_same(seen, evaluations(run))
    assert_same(weights(average.module), saved(run, "average", Teacher))


@pytest.mark.parametrize("at", [1, 2, 3, 6])
@pytest.mark.parametrize("bad", [[2, 9], [2, 37]])
def test_average_whose_first_updates_are_skipped_goes_on_after_a_resume(
    at: int, bad: list[int]
) -> None:
    x = TRAIN[0].clone()
    x[bad] = torch.nan  # in the first steps
    net, step = make_net(), 0
    optimizer, history = torch.optim.SGD(net.parameters(), lr=LR), []
    for _ in range(2):
        for a, b in in_batches(7, x, TRAIN[1]):
            step += 1
            if a.isfinite().all():
                optimizer.zero_grad()
                nn.functional.mse_loss(net(a), b).backward()
                optimizer.step()
                history.append(weights(net))
    average = history[0]
    for count, now in enumerate(history[1:], 1):
        keep = min(0.8, (1 + count) / (10 + count))
        average = {name: keep * average[name] + (1 - keep) * now[name] for name in now}

    class Pause(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> Any:
            return surestep.Request.PAUSE if state.progress.step == at else None

    options = config({"kind": "ema", "decay": 0.8}, epochs=2, on_nonfinite="skip")
    task = surestep.Task(make_net(), nn.MSELoss(), train=(x, TRAIN[1]), val=VAL)
    with pytest.raises(Preempted):
        surestep.Trainer(task, options, run="run", callbacks=[Pause()]).fit()
    task = surestep.Task(make_net(), nn.MSELoss(), train=(x, TRAIN[1]), val=VAL)
    run = surestep.Trainer(task, options, run="run").fit()
    assert_same(average, saved(run, "average", make_net))


def test_weights_that_an_own_loop_limits_after_each_step_are_averaged() -> None:
    net, ours = make_net(), make_net()
    average, averaged = ema(net, 0.8), []
    for _ in steps_by_hand(net, 2):
        with torch.no_grad():
            for weight in net.parameters():
                weight.clamp_(-0.3, 0.3)
        average.update_parameters(net)
        averaged.append(loss_of(average))
    task = surestep.Task(ours, nn.MSELoss(), train=TRAIN, val=VAL)
    session, found = prepare(task, config(EMA, epochs=2)), {}
    for result in session.steps():
        with torch.no_grad():
            for weight in ours.parameters():
                weight.clamp_(-0.3, 0.3)
        if result.step in (4, 5, 14):
            found[result.step] = session.evaluate()["val/loss"]
    assert_same({step: averaged[step - 1] for step in found}, found)
    assert_same(weights(net), weights(ours))
