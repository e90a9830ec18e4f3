"""Optimizers that wrap others: their state continues after a resume and is undone with a step."""

from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, in_batches, prepare, train, weights

G = torch.Generator().manual_seed(37)
X = torch.randn(23, 4, generator=G, dtype=torch.float64)  # batches of 7, the last of two
Z = torch.randn(23, 2, generator=G, dtype=torch.float64)
BAD = X.clone()
BAD[9] = torch.nan  # in the second batch


class Lookahead(torch.optim.Optimizer):
    """As people write it: without state, and with the state dict of the optimizer in it."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base = base
        self.defaults, self.param_groups = base.defaults, base.param_groups
        self.state = defaultdict(dict)
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        for group in self.param_groups:
            group["taken"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self.base.step(closure)
        for group in self.param_groups:
            group["taken"] += 1
            if group["taken"] % 3:
                continue
            for weight in group["params"]:
                slots = self.base.state[weight]
                slow = slots.setdefault("slow", weight.clone())
                weight.copy_(slow.lerp_(weight, 0.5))
        return loss

    def state_dict(self) -> Any:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.base.load_state_dict(state_dict)
        self.param_groups = self.base.param_groups


class Outer(torch.optim.Optimizer):
    """Shares its groups with the optimizer in it, and keeps a sum of each weight's steps."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base.param_groups, base.defaults)
        self.param_groups = base.param_groups
        self.inner = base

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        weights = [weight for group in self.param_groups for weight in group["params"]]
        before = [weight.clone() for weight in weights]
        self.inner.step(closure)
        for weight, old in zip(weights, before, strict=True):
            total = self.state[weight].setdefault("total", torch.zeros_like(weight))
            weight.add_(total.add_(weight - old), alpha=-0.1)


class LikeInner(Outer):
    """The same, with one state for both."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base)
        self.state = base.state


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def config(**options: Any) -> surestep.Config:
    return surestep.Config(
        batch_size=7,
        max_grad_norm=None,
        data={"shuffle": False},
        logging={"progress": "quiet"},
        **options,
    )


@pytest.mark.parametrize("kind", [Lookahead, Outer, LikeInner])
def test_optimizer_in_an_own_optimizer_goes_on_after_a_resume(kind: Any) -> None:
    def make(groups: Any) -> torch.optim.Optimizer:
        return kind(kind(torch.optim.Adam(groups, lr=0.05)))

    plain_net: Any = net()
    optimizer = make(plain_net.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 12)
    losses = []
    for _ in range(3):
        for x, z in in_batches(7, X, Z):
            optimizer.zero_grad()
            loss = F.mse_loss(plain_net(x), z)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    ours = []
    for stop in (4, 8, 100):
        ours_net = net()
        task = surestep.Task(ours_net, nn.MSELoss(), train=(X, Z), optimizer=make)
        session = prepare(task, config(epochs=3, schedule="linear"), run="run")
        for result in session.steps():
            ours.append(float(result.loss))
            if result.step == stop:
                session.save()
                break
        session.close()
    assert_same([losses, weights(plain_net)], [ours, weights(ours_net)])


@pytest.mark.parametrize("kind", [Lookahead, Outer, LikeInner])
def test_optimizer_in_an_own_optimizer_is_undone_with_a_manual_step(kind: Any) -> None:
    def make(groups: Any) -> torch.optim.Optimizer:
        return kind(torch.optim.Adam(groups, lr=0.05))

    plain_net: Any = nn.ModuleDict({"first": net(), "second": net()})
    first = make(plain_net["first"].parameters())
    second = torch.optim.SGD(plain_net["second"].parameters(), lr=0.1)
    for _ in range(3):
        for x, bad, z in in_batches(7, X, BAD, Z):
            if not bad.isfinite().all():
                continue
            first.zero_grad()
            F.mse_loss(plain_net["first"](x), z).backward()
            first.step()
            second.zero_grad()
            F.mse_loss(plain_net["second"](bad), z).backward()
            second.step()

    def step(manual_step: surestep.ManualStep) -> None:
        for number, name in enumerate(("first", "second")):
            for micro in manual_step.micro_batches(name):
                outputs = manual_step.models[name](micro.args[number])
                manual_step.backward(F.mse_loss(outputs, micro.args[2]), micro)
            manual_step.step(name)

    ours_net = nn.ModuleDict({"first": net(), "second": net()})
    sgd = surestep.Optim(name="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
    task = surestep.Task(
        ours_net, train=(X, BAD, Z), step=step, optimizers={"first": make, "second": sgd}
    )
    train(task, config(epochs=3, schedule="constant", on_nonfinite="skip"))
    assert_same(weights(plain_net), weights(ours_net))
