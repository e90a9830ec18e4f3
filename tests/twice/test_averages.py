"""Averages: those of a loop that copies and averages weights by hand, and what is evaluated."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import surestep
from surestep.base.errors import Preempted
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

X = torch.randn(53, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
TRAIN, VAL = (X[:43], Y[:43]), (X[43:], Y[43:])  # 7 batches of 7, the last has one sample
EVEN = (X[:34], Y[:34])  # 5 batches of 7, the last has six samples, as BatchNorm needs
LR = 0.1


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


class Moving(nn.Module):
    """BatchNorm, a scale that follows the activations, a count and a mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5, momentum=0.3)
        self.last = nn.Linear(5, 1)
        self.register_buffer("scale", torch.ones(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x))
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.8).add_(hidden.abs().mean(dim=0), alpha=0.2)
                self.count += len(x)
        return self.last(hidden / self.scale) + torch.softmax(self.mask, 0)[1]


def make_moving() -> nn.Module:
    torch.manual_seed(0)
    return Moving().double()


def loss_of(net: Any, data: tuple[Tensor, Tensor] = VAL) -> float:
    was = net.training
    net.eval()
    with torch.no_grad():
        loss = float(nn.functional.mse_loss(net(data[0]), data[1]))
    net.train(was)
    return loss


def steps_by_hand(
    net: nn.Module, epochs: int, data: tuple[Tensor, Tensor] = TRAIN, lr: float = LR
) -> Iterator[int]:
    net.train()
    optimizer, step = torch.optim.SGD(net.parameters(), lr=lr), 0
    for _ in range(epochs):
        for x, y in in_batches(7, *data):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            step += 1
            yield step


def ema(model: nn.Module, decay: float, **options: Any) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), **options)


def config(average: Any, **options: Any) -> surestep.Config:
    defaults = {"epochs": 3, "batch_size": 7, "optim": {"lr": LR}}
    return plain_config(average=average, **defaults | options)


def fit(
    net: nn.Module,
    average: Any,
    data: Any = TRAIN,
    task: Any = None,
    val: Any = VAL,
    **options: Any,
) -> surestep.Run:
    made = surestep.Task(net, nn.MSELoss(), train=data, val=val, **task or {})
    return surestep.Trainer(made, config(average, **options), run="run").fit()


def evaluations(run: surestep.Run, name: str = "val/loss") -> dict[int, float]:
    found = [event for event in run.events() if event["event"] == "evaluation"]
    return {event["step"]: float(event["metrics"][name]) for event in found}


def saved(run: surestep.Run, which: Any, make: Callable[[], nn.Module]) -> dict[str, Tensor]:
    net = make()
    run.load_model(net, which=which)
    return weights(net)


@pytest.mark.parametrize("micro", [7, 3])
def test_every_evaluation_is_of_the_moving_average(micro: int) -> None:
    net = make_net()
    average, seen = ema(net, 0.7), {}
    for step in steps_by_hand(net, 3):
        average.update_parameters(net)
        if step % 4 == 0 or step == 21:
            seen[step] = loss_of(average)
    ours = make_net()
    options = {"validation": {"every": "4 steps"}, "micro_batch_size": micro}
    run = fit(ours, {"kind": "ema", "decay": 0.7, "warmup": False}, **options)

    assert_same(seen, evaluations(run))
    assert_same(weights(net), weights(ours))
    assert_same(weights(average.module), saved(run, "average", make_net))


def test_decay_grows_with_the_updates_that_come_every_third_step_from_a_start() -> None:
    net, averaged, updates = make_net(), {}, 0
    for step in steps_by_hand(net, 3):
        if step > 5 and (step - 5) % 3 == 0:
            decay = min(0.6, (1 + updates) / (10 + updates)) if updates else 0.0
            now = weights(net)
            averaged = {k: decay * averaged.get(k, v) + (1 - decay) * v for k, v in now.items()}
            updates += 1
    average = {"kind": "ema", "decay": 0.6, "start": "5 steps", "every": "3 steps"}
    run = fit(make_net(), average)

    assert updates == 5
    assert_same(averaged, saved(run, "average", make_net))


@pytest.mark.parametrize("start", ["75%", "50%", "17 steps", "2 epochs", "2.5 epochs"])
@pytest.mark.parametrize("every", [1, 2])
def test_mean_of_epochs_is_of_the_weights_at_the_ends_of_epochs(start: str, every: int) -> None:
    """By default from 75% of the run, which is in the middle of an epoch: 26.25 of 35 steps."""
    net, total = make_net(), 35
    first = {"75%": 26.25, "50%": 17.5, "17 steps": 17, "2 epochs": 14, "2.5 epochs": 17.5}[start]
    average = AveragedModel(net)
    epochs_before = int(first // 7)
    for step in steps_by_hand(net, 5):
        epoch = step / 7
        if epoch > epochs_before and epoch.is_integer() and (epoch - epochs_before) % every == 0:
            average.update_parameters(net)
    assert step == total
    averaging = {"kind": "swa", "start": start, "every": f"{every} epochs"}
    run = fit(make_net(), averaging, epochs=5)

    assert_same(weights(average.module), saved(run, "average", make_net))


def test_mean_of_epochs_by_default_is_of_the_ends_of_the_last_epochs() -> None:
    net = make_net()
    average = AveragedModel(net)
    for step in steps_by_hand(net, 5):
        if step in (28, 35):
            average.update_parameters(net)
    run = fit(make_net(), "swa", epochs=5)

    assert_same(weights(average.module), saved(run, "average", make_net))
    assert_same(loss_of(average), evaluations(run)[35])


def test_statistics_of_a_mean_are_those_of_update_bn_with_a_smaller_last_batch() -> None:
    net, seen = make_moving(), {}
    average = AveragedModel(net)
    for step in steps_by_hand(net, 4, EVEN):
        if step > 10 and step % 5 == 0:
            average.update_parameters(net)
            other = copy.deepcopy(average)
            for name in ("scale", "count"):  # what is no BatchNorm is that of the model
                getattr(other.module, name).copy_(getattr(net, name))
            kept = weights(other.module)
            update_bn(in_batches(7, EVEN[0]), other)
            for name in ("scale", "count"):
                getattr(other.module, name).copy_(kept[name])
            seen[step] = loss_of(other)
    ours = make_moving()
    run = fit(ours, {"kind": "swa", "start": "10 steps"}, EVEN, epochs=4)
    found = evaluations(run)

    assert_same(seen, {step: found[step] for step in seen})
    assert_same(weights(net), weights(ours))
    assert_same(
        weights(other.module)["norm.running_var"],
        saved(run, "average", make_moving)["norm.running_var"],
    )


@pytest.mark.parametrize("kind", ["average", "copy"])
def test_buffers_are_averaged_with_the_weights_or_copied(kind: str) -> None:
    net, seen = make_moving(), {}
    average = ema(net, 0.8)
    buffers: dict[str, Tensor] = {}
    for step in steps_by_hand(net, 3, EVEN):
        average.update_parameters(net)
        now = {name: b.clone() for name, b in net.named_buffers()}
        for name, b in now.items():
            is_averaged = kind == "average" and b.is_floating_point() and name != "mask"
            buffers[name] = 0.8 * buffers.get(name, b) + 0.2 * b if is_averaged else b
        if step % 5 == 0:
            average.module.load_state_dict(weights(average.module) | buffers)
            seen[step] = loss_of(average)
    ours = make_moving()
    averaging = {"kind": "ema", "decay": 0.8, "warmup": False, "buffers": kind}
    run = fit(ours, averaging, EVEN)

    assert_same(seen, evaluations(run))
    assert_same(weights(net), weights(ours))
    assert_same(weights(average.module), saved(run, "average", make_moving))


def test_average_of_a_model_in_half_precision_keeps_the_type_of_its_buffers() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 1)
            self.register_buffer("scale", torch.ones(5))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            if self.training:
                with torch.no_grad():
                    self.scale.mul_(0.8).add_(hidden.abs().mean(dim=0), alpha=0.2)
            return self.last(hidden / self.scale)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return Scaled().bfloat16()

    x, y = X.bfloat16(), Y.bfloat16()
    ours = make()
    made = surestep.Task(ours, nn.MSELoss(), train=(x[:43], y[:43]), val=(x[43:], y[43:]))
    averaging = {"kind": "ema", "decay": 0.5, "warmup": False}
    session, history = prepare(made, config(averaging)), []
    for _ in session.steps():
        history.append(weights(ours))
    average = {name: value.float() for name, value in history[0].items()}
    for now in history[1:]:
        average = {name: 0.5 * average[name] + 0.5 * now[name].float() for name in now}
    plain = make()
    plain.load_state_dict(average)
    plain.eval()
    with torch.no_grad():
        each = nn.functional.mse_loss(plain(x[43:]), y[43:], reduction="none")
        plain_loss = float(each.double().mean())

    assert_same(plain_loss, session.evaluate()["val/loss"])
    assert {tensor.dtype for tensor in weights(ours).values()} == {torch.bfloat16}


class Tied(nn.Module):
    """A table that is also the head, and a scale that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.table.weight
        self.scale = nn.Parameter(torch.full((4,), 1.5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.table(x)) * self.scale))


def make_tied() -> nn.Module:
    torch.manual_seed(0)
    return Tied().double()


def test_average_of_tied_and_frozen_weights_is_evaluated_and_loaded() -> None:
    x = torch.randint(0, 11, (29,), generator=torch.Generator().manual_seed(3))
    y, net, seen = (3 * x + 1) % 11, make_tied(), {}
    average, step = ema(net, 0.9), 0
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        for a, b in in_batches(7, x, y):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(a), b).backward()
            optimizer.step()
            average.update_parameters(net)
            step += 1
        with torch.no_grad():
            seen[step] = float(nn.functional.cross_entropy(average(x[:13]), y[:13]))
    made = surestep.Task(make_tied(), nn.CrossEntropyLoss(), train=(x, y), val=(x[:13], y[:13]))
    averaging = {"kind": "ema", "decay": 0.9, "warmup": False}
    run = surestep.Trainer(made, config(averaging, optim={"lr": 0.5}), run="run").fit()

    assert_same(seen, evaluations(run))
    assert_same(weights(average.module), saved(run, "average", make_tied))


def test_part_that_is_trained_later_is_averaged_from_the_first_update() -> None:
    net: Any = make_net()
    average, step = ema(net, 0.7), 0
    parts = [{"params": net[0].parameters()}, {"params": net[2].parameters()}]
    optimizer = torch.optim.SGD(parts, lr=LR)
    for epoch in range(3):
        net[0].requires_grad_(epoch >= 1)
        for x, y in in_batches(7, *TRAIN):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            average.update_parameters(net)
            step += 1
    averaging = {"kind": "ema", "decay": 0.7, "warmup": False}
    run = fit(make_net(), averaging, optim={"lr": LR, "groups": ["0 freeze='1 epoch'"]})

    assert_same(weights(average.module), saved(run, "average", make_net))


@pytest.mark.parametrize("at", [3, 10, 14])
def test_average_with_its_buffers_goes_on_after_a_resume(at: int) -> None:
    averaging = {"kind": "ema", "decay": 0.8}
    whole = make_moving()
    made = surestep.Task(whole, nn.MSELoss(), train=EVEN, val=VAL)
    session = prepare(made, config(averaging), run="whole")
    list(session.steps())
    plain = [weights(whole), dict(session.state.average.tensors), session.evaluate()]

    class Pause(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> Any:
            return surestep.Request.PAUSE if state.progress.step == at else None

    made = surestep.Task(make_moving(), nn.MSELoss(), train=EVEN, val=VAL)
    first = surestep.Trainer(made, config(averaging), run="run", callbacks=[Pause()])
    with pytest.raises(Preempted):
        first.fit()
    ours = make_moving()
    made = surestep.Task(ours, nn.MSELoss(), train=EVEN, val=VAL)
    session = prepare(made, config(averaging), run="run")
    list(session.steps())

    now = [weights(ours), dict(session.state.average.tensors), session.evaluate()]
    assert_same(plain, now, exact=True)


@pytest.mark.parametrize("start", [0, 17, 26])
def test_average_of_half_epochs_has_two_updates_in_each_epoch_of_seven_steps(start: int) -> None:
    net, updates = make_net(), []
    average = ema(net, 0.7)
    for step in steps_by_hand(net, 5):
        if step > start and step % 7 in (0, 4):  # at 3.5 steps, and at the end of an epoch
            average.update_parameters(net)
            updates.append(step)
    averaging = {"kind": "ema", "decay": 0.7, "warmup": False, "every": "0.5 epochs"}
    run = fit(make_net(), averaging | {"start": f"{start} steps" if start else 0}, epochs=5)

    assert updates[-4:] == [25, 28, 32, 35] or start == 26
    assert_same(weights(average.module), saved(run, "average", make_net))
