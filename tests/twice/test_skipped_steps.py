"""Steps that are not finite: everything is as in a loop by hand that leaves them out."""

import copy
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.parts import remove_part
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, train, weights

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(53, 4, generator=GENERATOR, dtype=torch.float64)
Z = torch.randn(53, 2, generator=GENERATOR, dtype=torch.float64)
ADAMW: dict[str, Any] = {"name": "adamw", "momentum": surestep.NOT_SET}
BAD = X.clone()
BAD[17] = torch.nan  # in the third batch of 7
BAD[52] = torch.inf  # in the last


def net() -> nn.Module:
    """Return a model with running statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)
    )
    return model.double()


def by_hand(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    average: Any = None,
    *,
    epochs: int = 2,
    micro: int = 7,
) -> list[float]:
    """Train by hand; a step that is not finite leaves nothing. Return the losses of the others."""
    losses = []
    for _ in range(epochs):
        for x, z in in_batches(7, BAD, Z):
            before = {name: value.clone() for name, value in model.named_buffers()}
            optimizer.zero_grad()
            total = 0.0
            for part, targets in in_batches(micro, x, z):
                loss = F.mse_loss(model(part), targets) * len(part) / len(x)
                loss.backward()
                total += loss.item()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if torch.isfinite(norm) and total == total:
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                if average is not None:
                    average.update_parameters(model)
                losses.append(total)
            else:
                for name, value in model.named_buffers():
                    value.copy_(before[name])
    return losses


CONFIG: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 7,
    "max_grad_norm": 0.5,
    "on_nonfinite": "skip",
}


def test_skipped_steps_leave_momentum_statistics_and_schedule_as_they_were() -> None:
    plain_net, ours_net = net(), net()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    plain = by_hand(plain_net, optimizer, scheduler)

    task = surestep.Task(
        ours_net, nn.MSELoss(), train=(BAD, Z), schedule=lambda step, total: 1 / (1 + step)
    )
    config = plain_config(**CONFIG | {"schedule": surestep.NOT_SET, "optim": {"momentum": 0.9}})
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps() if bool(result.took_step)]

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))
    assert session.state.counts.nonfinite == 4


def test_skipped_steps_leave_the_average_and_adamw_as_they_were() -> None:
    plain_net, ours_net = net(), net()
    optimizer = torch.optim.AdamW(plain_net.parameters(), lr=0.01, weight_decay=0.0)
    average = torch.optim.swa_utils.AveragedModel(
        plain_net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8), use_buffers=True
    )
    by_hand(plain_net, optimizer, None, average, micro=4)
    average.eval()
    with torch.no_grad():
        plain = float(F.mse_loss(average(X[:11]), Z[:11]))

    task = surestep.Task(ours_net, nn.MSELoss(), train=(BAD, Z), val=(X[:11], Z[:11]))
    config = plain_config(
        **CONFIG,
        micro_batch_size=4,
        optim=ADAMW | {"lr": 0.01},
        average={
            "kind": "ema",
            "decay": 0.8,
            "warmup": False,
            "start": 0,
            "buffers": "average",
        },
    )
    session = train(task, config)

    assert_same(weights(plain_net), weights(ours_net))
    assert_same(plain, session.evaluate()["val/loss"])


def test_resumed_run_skips_the_same_steps() -> None:
    plain_net = net()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1, momentum=0.9)
    plain = by_hand(plain_net, optimizer)

    ours = []
    for stop in (3, 9, 100):
        ours_net = net()
        task = surestep.Task(ours_net, nn.MSELoss(), train=(BAD, Z))
        config = plain_config(**CONFIG, optim={"momentum": 0.9})
        with surestep.prepare(task, config, run="run") as session:
            for result in session.steps():
                if bool(result.took_step):
                    ours.append(float(result.loss))
                if result.step == stop:
                    session.save()
                    break

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))
    assert session.state.counts.nonfinite == 4


class RunningScale(nn.Module):
    """A loss that divides by a running mean of the errors, which it keeps in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = (outputs - targets).square().mean()
        if torch.is_grad_enabled():
            self.scale.lerp_(loss.detach(), 0.3)
        return loss / self.scale


def test_skipped_steps_leave_the_buffers_of_a_loss_as_they_were() -> None:
    plain_net, ours_net, loss_fn = net(), net(), RunningScale()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    for x, z in in_batches(7, BAD, Z):
        both = [*plain_net.buffers(), *loss_fn.buffers()]
        before = [value.clone() for value in both]
        optimizer.zero_grad()
        loss = loss_fn(plain_net(x), z)
        loss.backward()
        if loss.isfinite():
            optimizer.step()
        else:
            for value, saved in zip(both, before, strict=True):
                value.copy_(saved)

    ours_loss = RunningScale()
    task = surestep.Task(ours_net, ours_loss, train=(BAD, Z), loss_is_separable=False)
    config = plain_config(epochs=1, batch_size=7, on_nonfinite="skip")
    session = train(task, config)

    assert_same(weights(plain_net), weights(ours_net))
    assert_same(loss_fn.scale, session.loop.context.loss.module.scale)


def test_gradients_that_are_not_finite_at_a_finite_loss_skip_the_step() -> None:
    def distance(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(dim=1).sqrt().mean()

    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) * x[:, :1]  # 0 for an input of 0, where sqrt has no slope

    bad, z = X.clone(), Z.clone()
    bad[8::19], z[8::19] = 0.0, 0.0
    plain_net, ours_net = Bounded(), Bounded()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    taken = []
    for part, targets in in_batches(7, bad, z):
        optimizer.zero_grad()
        distance(plain_net(part), targets).backward()
        taken.append(all(bool(p.grad.isfinite().all()) for p in plain_net.parameters()))
        if taken[-1]:
            optimizer.step()

    task = surestep.Task(ours_net, distance, train=(bad, z))
    config = plain_config(epochs=1, batch_size=7, on_nonfinite="skip")
    ours = [bool(result.took_step) for result in prepare(task, config).steps()]

    assert set(taken) == {True, False}
    assert_same(taken, ours)
    assert_same(weights(plain_net), weights(ours_net))


def test_batches_without_items_move_neither_schedule_nor_average() -> None:
    y = torch.randint(0, 3, (53,), generator=torch.Generator().manual_seed(3))
    y[7:14] = -100
    y[28:34] = -100
    y[52:] = -100

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()

    plain_net, ours_net = model(), model()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    average = torch.optim.swa_utils.AveragedModel(plain_net)
    for _ in range(2):
        for x, targets in in_batches(7, X, y):
            if int((targets >= 0).sum()) == 0:
                continue
            optimizer.zero_grad()
            F.cross_entropy(plain_net(x), targets).backward()
            optimizer.step()
            scheduler.step()
            average.update_parameters(plain_net)
    plain_net.eval()
    average.module.load_state_dict(weights(plain_net) | dict(average.module.named_parameters()))
    average.eval()
    with torch.no_grad():
        plain = float(F.cross_entropy(average(X), y))

    task = surestep.Task(
        ours_net,
        nn.CrossEntropyLoss(),
        train=(X, y),
        val=(X, y),
        schedule=lambda step, total: 0.9**step,
    )
    config = plain_config(
        epochs=2,
        batch_size=7,
        schedule=surestep.NOT_SET,
        optim={"momentum": 0.9, "nesterov": True},
        average={"kind": "swa", "start": 0, "every": "1 step", "buffers": "copy"},
    )
    session = train(task, config)

    assert_same(weights(plain_net), weights(ours_net))
    assert_same(plain, session.evaluate()["val/loss"])


def test_events_have_the_losses_of_the_steps_that_were_taken() -> None:
    plain_net, ours_net = net(), net()
    plain = by_hand(plain_net, torch.optim.SGD(plain_net.parameters(), lr=0.1))

    task = surestep.Task(ours_net, nn.MSELoss(), train=(BAD, Z))
    run = surestep.Trainer(task, plain_config(**CONFIG, logging={"every": "5 steps"})).fit()
    found = [event for event in run.events() if event["event"] == "steps"]
    ours = [loss for event in found for loss in event["loss"] if loss != "nan"]

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


def test_excluding_the_samples_that_were_skipped_equals_a_loop_without_them() -> None:
    plain_net, ours_net = net(), net()
    rest = [index for index in range(53) if index not in (17, 52)]
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    for x, z in in_batches(7, X[rest], Z[rest]):
        optimizer.zero_grad()
        F.mse_loss(plain_net(x), z).backward()
        optimizer.step()

    config = plain_config(epochs=1, batch_size=7, on_nonfinite="skip")
    surestep.Trainer(surestep.Task(net(), nn.MSELoss(), train=(BAD, Z)), config, run="first").fit()
    config = plain_config(epochs=1, batch_size=7, exclude_samples="first/skipped.json")
    train(surestep.Task(ours_net, nn.MSELoss(), train=(BAD, Z)), config)

    assert_same(weights(plain_net), weights(ours_net))


def test_manual_step_that_is_skipped_leaves_both_optimizers_as_they_were() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = net(), nn.Linear(2, 2).double()
            self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def losses(model: Two, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        model.seen += x.sum()
        out = model.a(x)
        return F.mse_loss(out, z), F.l1_loss(model.b(z), (out * x[:, :2]).detach())

    plain_net = Two()
    ours_net = copy.deepcopy(plain_net)
    first = torch.optim.SGD(plain_net.a.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.Adam(plain_net.b.parameters(), lr=0.01)
    for x, z in in_batches(7, BAD, Z):
        saved = copy.deepcopy([plain_net.state_dict(), first.state_dict(), second.state_dict()])
        one, two = losses(plain_net, x, z)
        first.zero_grad()
        one.backward()
        first.step()
        one, two = losses(plain_net, x, z)
        second.zero_grad()
        two.backward()
        second.step()
        if not (one.isfinite() and two.isfinite()):
            plain_net.load_state_dict(saved[0])
            first.load_state_dict(saved[1])
            second.load_state_dict(saved[2])

    def step(manual_step: surestep.ManualStep) -> None:
        for name, index in (("a", 0), ("b", 1)):
            for micro in manual_step.micro_batches(name):
                loss = losses(manual_step.model, *micro.args)[index]
                manual_step.backward(loss, micro)
            manual_step.step(name)

    task = surestep.Task(
        ours_net,
        train=(BAD, Z),
        step=step,
        optimizers={
            "a": surestep.Optim(name="sgd", lr=0.1, momentum=0.9, weight_decay=0.0),
            "b": surestep.Optim(name="adam", lr=0.01, weight_decay=0.0),
        },
    )
    config = plain_config(epochs=1, batch_size=7, on_nonfinite="skip")
    session = train(task, config)

    assert session.state.counts.nonfinite == 2
    assert_same(weights(plain_net), weights(ours_net))


class Noisy(nn.Module):
    """A model and a loss that draw from generators and keep buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.drop = net(), nn.Dropout(0.3)
        self.noise = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        shift = torch.randn(x.shape, generator=self.noise, dtype=x.dtype)
        return self.drop(self.net(x + 0.1 * shift)) + random.random()


def test_search_for_the_bad_samples_changes_nothing() -> None:
    runs = []
    for searches in (True, False):
        model, loss = Noisy(), RunningScale()
        task = surestep.Task(model, loss, train=(BAD, Z), loss_is_separable=False)
        average = {"kind": "ema", "decay": 0.9}
        session = prepare(task, plain_config(**CONFIG, average=average))
        if not searches:
            remove_part(session, session.incidents)
        losses = [float(result.loss) for result in session.steps()]
        scale = session.loop.context.loss.module.scale
        runs.append([losses, weights(model), session.state.average.tensors, scale])

    assert session.state.counts.nonfinite == 4
    assert_same(runs[0], runs[1], exact=True)
