"""Optimizers that change the groups they get, and parts that are frozen with their buffers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from tests.twice.compare import assert_same, in_batches, prepare, weights

X = torch.randn(34, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
LR = 0.02


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, affine=False), nn.Tanh()
        )
        self.last = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def make_net() -> Any:
    torch.manual_seed(0)
    return Net().double()


def run_by_hand(net: Any, optimizers: Any, before: Any = lambda step: None) -> list[Any]:
    losses: list[float] = []
    net.train()
    for _ in range(3):
        for x, y in in_batches(7, X, Y):
            before(len(losses))
            net.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
    return [torch.tensor(losses), weights(net)]


def ours(net: Any, task: Any = None, **options: Any) -> list[Any]:
    made = surestep.Task(net, nn.MSELoss(), train=(X, Y), **task or {})
    config = surestep.Config(
        **{"epochs": 3, "batch_size": 7, "max_grad_norm": None} | options,
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    session = prepare(made, config)
    return [torch.tensor([float(result.loss) for result in session.steps()]), weights(net)]


def test_own_optimizer_that_splits_its_groups_has_the_multiples_in_all_parts() -> None:
    """Matrices and vectors get separate groups with separate betas, as for Muon or Shampoo."""

    def make(groups: Any) -> torch.optim.Optimizer:
        parts = []
        for wanted, betas in ((True, (0.9, 0.99)), (False, (0.8, 0.9))):
            for group in groups:
                chosen = [p for p in group["params"] if (p.dim() > 1) is wanted]
                if chosen:
                    parts.append({**group, "params": chosen, "betas": betas})
        return torch.optim.Adam(parts, lr=LR)

    net = make_net()
    groups = [
        {
            "params": [p],
            "lr": 0.1 * LR if name.startswith("first") else LR,
            "betas": (0.9, 0.99) if p.dim() > 1 else (0.8, 0.9),
        }
        for name, p in net.named_parameters()
    ]
    plain = run_by_hand(net, [torch.optim.Adam(groups)])
    optim = {"groups": ["first lr=0.1x decay=0", "last decay=0"]}
    assert_same(plain, ours(make_net(), {"optimizer": make}, optim=optim))


def test_own_optimizer_that_joins_all_parameters_has_one_rate() -> None:
    def make(groups: Any) -> torch.optim.Optimizer:
        every = [p for group in groups for p in group["params"]]
        return torch.optim.Adam(every, lr=LR, weight_decay=0.1)

    net = make_net()
    plain = run_by_hand(net, [torch.optim.Adam(net.parameters(), lr=LR, weight_decay=0.1)])
    assert_same(plain, ours(make_net(), {"optimizer": make}))


@pytest.mark.parametrize(
    "groups", [["first freeze='7 steps'"], ["type:BatchNorm1d freeze", "*0 freeze='7 steps'"]]
)
def test_statistics_without_weights_are_frozen_with_their_part(groups: list[str]) -> None:
    until = 7 if len(groups) == 1 else 1000
    net = make_net()

    def before(step: int) -> None:
        net.first[0].requires_grad_(step >= 7)
        net.first[1].train(step >= until)

    sgd = torch.optim.SGD(net.parameters(), lr=LR)
    plain = run_by_hand(net, [sgd], before)
    optim = {"name": "sgd", "lr": LR, "weight_decay": 0.0, "groups": groups}
    assert_same(plain, ours(make_net(), optim=optim))


def test_hooks_of_an_own_optimizer_see_each_update_and_its_rate() -> None:
    seen: dict[str, list[float]] = {"plain": [], "ours": []}

    def hooked(parameters: Any, name: str) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(parameters, lr=LR)

        def decay(optimizer: Any, args: Any, kwargs: Any) -> None:
            rate = optimizer.param_groups[0]["lr"]
            seen[name].append(rate)
            with torch.no_grad():
                for group in optimizer.param_groups:
                    for p in group["params"]:
                        p.mul_(1 - 0.1 * rate)

        optimizer.register_step_pre_hook(decay)
        return optimizer

    net = make_net()
    optimizer = hooked(net.parameters(), "plain")
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 15)

    class Both:
        def step(self) -> None:
            optimizer.step()
            scheduler.step()

    plain = run_by_hand(net, [Both()])
    found = ours(
        make_net(), {"optimizer": lambda groups: hooked(groups, "ours")}, schedule="linear"
    )
    assert_same(plain, found)
    assert_same(torch.tensor(seen["plain"]), torch.tensor(seen["ours"]))


def test_curvature_search_takes_all_groups_as_one_at_a_falling_rate() -> None:
    net, losses = make_net(), []
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, history_size=3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, 6)
    net.first[1].eval()
    for _ in range(6):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(X), Y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
        scheduler.step()
    plain = [torch.tensor(losses), weights(net)]
    found = make_net()
    options: Any = {
        **{"epochs": 6, "batch_size": 34, "micro_batch_size": 13},
        "optim": {"name": "lbfgs", "lr": 0.5, "max_iter": 4, "history_size": 3},
        "schedule": {"name": "linear", "min_lr_ratio": 0.2},
    }
    result = ours(found, {"keep_eval": [found.first[1]]}, **options)
    assert_same(plain, result)
