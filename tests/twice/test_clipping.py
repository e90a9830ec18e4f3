"""Clipping and gradients: of the full batch, of all parameters that have one, as torch clips."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

X = torch.randn(43, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = 3 * X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
LR = 0.05
Clip = Callable[[Any], None]


def seeded(make: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return make()


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def clip_norm(limit: float) -> Clip:
    return lambda net: nn.utils.clip_grad_norm_(net.parameters(), limit)


def clip_value(limit: float) -> Clip:
    return lambda net: nn.utils.clip_grad_value_(net.parameters(), limit)


def by_hand(
    net: Any,
    clip: Clip,
    *,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    data: tuple[Tensor, Tensor] = (X, Y),
    loss: Callable[..., Tensor] = nn.functional.mse_loss,
    epochs: int = 3,
) -> list[Any]:
    optimizer, losses = make([p for p in net.parameters() if p.requires_grad], lr=LR), []
    for _ in range(epochs):
        for x, y in in_batches(7, *data):
            optimizer.zero_grad()
            value = loss(net(x), y)
            value.backward()
            clip(net)
            optimizer.step()
            losses.append(value.item())
    return [losses, weights(net)]


def ours(
    net: Any,
    *,
    data: tuple[Tensor, Tensor] = (X, Y),
    loss: Any = None,
    task: Any = None,
    **options: Any,
) -> list[Any]:
    made = surestep.Task(net, loss or nn.MSELoss(), train=data, **task or {})
    options["optim"] = {"lr": LR} | options.get("optim", {})
    session = prepare(made, plain_config(**{"epochs": 3, "batch_size": 7} | options))
    return [[float(result.loss) for result in session.steps()], weights(net)]


@pytest.mark.parametrize("micro", [7, 3, 1])
@pytest.mark.parametrize("limit", [0.3, 5.0])
def test_norm_is_clipped_of_the_full_batch(micro: int, limit: float) -> None:
    plain = by_hand(seeded(make_net), clip_norm(limit))
    assert_same(plain, ours(seeded(make_net), max_grad_norm=limit, micro_batch_size=micro))


@pytest.mark.parametrize("micro", [7, 4])
def test_values_are_clipped_of_the_full_batch(micro: int) -> None:
    plain = by_hand(seeded(make_net), clip_value(0.2))
    assert_same(plain, ours(seeded(make_net), clip_value=0.2, micro_batch_size=micro))


class Mixed(nn.Module):
    """A part in fp32 between parts in fp64."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5).double()
        self.middle = nn.Linear(5, 5)
        self.last = nn.Linear(5, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(self.first(x).float())).double())


@pytest.mark.parametrize("way", ["norm", "value"])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_parameters_of_two_types_are_clipped_by_one_norm(way: str, name: str) -> None:
    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        if name == "sgd":
            return torch.optim.SGD(parameters, lr=lr)
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)

    clip = clip_norm(0.5) if way == "norm" else clip_value(0.1)
    plain = by_hand(seeded(Mixed), clip, make=make)
    limits = {"max_grad_norm": 0.5} if way == "norm" else {"clip_value": 0.1}
    optim: Any = {"name": name, "momentum": 0.0} if name == "sgd" else {"name": name}
    net = seeded(Mixed)
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y))
    config = surestep.Config(
        epochs=3,
        batch_size=7,
        optim={"lr": LR, "weight_decay": 0.0} | optim,
        data={"shuffle": False},
        logging={"progress": "quiet"},
        **limits,
    )
    session = prepare(task, config)
    found = [[float(result.loss) for result in session.steps()], weights(net)]
    single = [(n, v) for n, v in plain[1].items() if v.dtype == torch.float32]

    assert len(single) == 2
    for key, value in plain[1].items():  # the fp32 part rounds
        assert torch.allclose(value.double(), found[1][key].double(), rtol=1e-5, atol=1e-6), key


class Gated(nn.Module):
    """A branch that only some batches use, and one that none uses."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.often = nn.Linear(4, 1), nn.Linear(4, 1)
        self.never = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.always(x)
        return out + self.often(x) if float(x[0, 0].detach()) > 0 else out


@pytest.mark.parametrize("name", ["sgd", "adamw", "adam", "rmsprop"])
def test_branch_without_a_gradient_is_not_updated_in_that_step(name: str) -> None:
    """Its moments, its step count and its weight decay stay as they are, as torch leaves None."""
    more: dict[str, Any] = {"sgd": {"momentum": 0.9}, "adamw": {"weight_decay": 0.1}}.get(name, {})
    kind = {
        "sgd": torch.optim.SGD,
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "rmsprop": torch.optim.RMSprop,
    }[name]

    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        if name != "adamw":
            return kind(parameters, lr=lr, **more)
        matrices = [p for p in parameters if p.dim() > 1]
        biases = [p for p in parameters if p.dim() < 2]
        groups = [{"params": matrices}, {"params": biases, "weight_decay": 0.0}]
        return kind(groups, lr=lr, weight_decay=0.1)

    plain = by_hand(seeded(lambda: Gated().double()), clip_norm(1.0), make=make)
    net = seeded(lambda: Gated().double())
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y))
    config = surestep.Config(
        epochs=3,
        batch_size=7,
        max_grad_norm=1.0,
        optim={"name": name, "lr": LR, "weight_decay": 0.0} | more,
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    session = prepare(task, config)
    found = [[float(result.loss) for result in session.steps()], weights(net)]
    assert_same(plain, found)


def test_gradient_of_zero_is_a_gradient() -> None:
    """Momentum and decay move a parameter whose gradient is exactly zero."""

    class Zero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.dead = nn.Linear(4, 1), nn.Linear(4, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + 0.0 * self.dead(x)

    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        matrices = [p for p in parameters if p.dim() > 1]
        biases = [p for p in parameters if p.dim() < 2]
        groups = [{"params": matrices}, {"params": biases, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, lr=lr, momentum=0.9, weight_decay=0.2)

    plain = by_hand(seeded(lambda: Zero().double()), clip_norm(1e-3), make=make)
    net = seeded(lambda: Zero().double())
    options = {"max_grad_norm": 1e-3, "optim": {"momentum": 0.9, "weight_decay": 0.2}}
    assert_same(plain, ours(net, **options))


def test_all_gradients_of_zero_are_clipped_without_a_nan() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.relu(outputs - 1e9).mean() + 0.0 * targets.mean()

    plain = by_hand(seeded(make_net), clip_norm(0.1), loss=loss)
    assert_same(plain, ours(seeded(make_net), loss=loss, max_grad_norm=0.1))


@pytest.mark.parametrize("micro", [7, 3])
def test_sparse_rows_that_occur_twice_are_summed_before_the_norm(micro: int) -> None:
    x = torch.randint(0, 5, (43, 6), generator=torch.Generator().manual_seed(2))
    y = (x.sum(1, keepdim=True) * 0.3).double()

    class Bag(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(5, 4, sparse=sparse), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.table(x).mean(1))

    plain = by_hand(seeded(lambda: Bag(False).double()), clip_norm(0.4), data=(x, y))
    net = seeded(lambda: Bag(True).double())
    assert_same(plain, ours(net, data=(x, y), max_grad_norm=0.4, micro_batch_size=micro))
    plain = by_hand(seeded(lambda: Bag(False).double()), clip_value(0.05), data=(x, y))
    net = seeded(lambda: Bag(True).double())
    assert_same(plain, ours(net, data=(x, y), clip_value=0.05, micro_batch_size=micro))


def test_tied_weights_count_once_in_the_norm() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.last = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.b(torch.tanh(self.a(x)))))

    plain = by_hand(seeded(lambda: Tied().double()), clip_norm(0.4))
    assert_same(plain, ours(seeded(lambda: Tied().double()), max_grad_norm=0.4))


def test_hooks_on_parameters_change_the_gradient_before_it_is_clipped() -> None:
    def make() -> nn.Module:
        net: Any = make_net()
        mask = torch.ones(5, 4, dtype=torch.float64)
        mask[:, 1] = 0
        net[0].weight.register_hook(lambda gradient: gradient * mask)
        net[2].weight.register_hook(lambda gradient: 10 * gradient)
        return net

    plain = by_hand(seeded(make), clip_norm(0.5))
    assert_same(plain, ours(seeded(make), max_grad_norm=0.5, micro_batch_size=3))


def test_frozen_weights_and_weights_of_a_detached_branch_are_not_in_the_norm() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.side, self.last = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 1)
            self.first.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(x)) + self.side(x).detach())

    plain = by_hand(seeded(lambda: Detached().double()), clip_norm(0.6))
    assert_same(plain, ours(seeded(lambda: Detached().double()), max_grad_norm=0.6))


def test_complex_weights_are_clipped_by_the_norm_of_their_absolute_values() -> None:
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
            self.last = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((x.to(torch.complex64) @ self.weight).abs())

    data = X.float(), Y.float()
    plain = by_hand(seeded(Waves), clip_norm(0.4), data=data)
    found = ours(seeded(Waves), data=data, max_grad_norm=0.4)
    for result in (plain[1], found[1]):
        result["weight"] = torch.view_as_real(result["weight"])
    assert_same(torch.tensor(plain[0]), torch.tensor(found[0]))
    assert_same(plain[1], found[1])


def test_norm_that_is_reported_is_that_before_clipping() -> None:
    net, norms = seeded(make_net), []
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for x, y in in_batches(7, X, Y):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), 0.4)))
        optimizer.step()
    task = surestep.Task(seeded(make_net), nn.MSELoss(), train=(X, Y))
    config = plain_config(epochs=1, batch_size=7, max_grad_norm=0.4, optim={"lr": LR})
    session = prepare(task, config)
    found = [float(result.grad_norm) for result in session.steps()]

    assert_same(norms, found)
    assert session.state.counts.clipped == sum(norm > 0.4 for norm in norms)


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_loss_that_only_double_precision_holds_is_finite(on_nonfinite: str) -> None:
    x, y = X * 1e25, Y * 1e25

    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-52, momentum=0.5)

    def make_linear() -> nn.Module:
        return nn.Linear(4, 1, bias=False).double()

    plain = by_hand(seeded(make_linear), lambda net: None, make=make, data=(x, y))
    optim = {"lr": 1e-52, "momentum": 0.5, "implementation": "foreach"}
    options: Any = {"optim": optim, "on_nonfinite": on_nonfinite}
    assert_same(plain, ours(seeded(make_linear), data=(x, y), **options))
