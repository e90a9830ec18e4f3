"""Rewards, physics and sequences whose state is carried over: steps that are not plain batches."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, seed_of, weights

GENERATOR = torch.Generator().manual_seed(17)
STATES = torch.randn(41, 3, generator=GENERATOR, dtype=torch.float64)
NEXT = STATES + 0.1 * torch.randn(41, 3, generator=GENERATOR, dtype=torch.float64)
ACTIONS = torch.randint(0, 4, (41,), generator=GENERATOR)
REWARDS = torch.rand(41, generator=GENERATOR, dtype=torch.float64)
DONE = (torch.arange(41) % 5 == 4).double()


def mlp(*sizes: int) -> nn.Sequential:
    """Return a small network with the same weights at each call."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2]))
    return net.double()


class DoubleQ(nn.Module):
    """An online network, and a target network that is copied from it every few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = mlp(3, 7, 4), mlp(3, 7, 4)
        self.target.requires_grad_(False)

    def forward(
        self, state: Tensor, action: Tensor, reward: Tensor, after: Tensor, done: Tensor
    ) -> tuple[Tensor, Tensor]:
        value = self.online(state).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            best = self.online(after).argmax(1, keepdim=True)
            wanted = reward + 0.9 * (1 - done) * self.target(after).gather(1, best)[:, 0]
        return value, wanted


class CopyEvery(surestep.Callback):
    """Copies the online network to the target network after every third step."""

    def on_step(self, state: Any, result: Any) -> None:
        if result.step % 3 == 0:
            state.model.target.load_state_dict(state.model.online.state_dict())


def test_double_q_learning_from_a_replay_with_importance_weights() -> None:
    names = ("state", "action", "reward", "after", "done")
    columns = (STATES, ACTIONS, REWARDS, NEXT, DONE)
    importance = torch.rand(41, generator=torch.Generator().manual_seed(1)).double() + 0.1
    net = DoubleQ()
    optimizer = torch.optim.RMSprop(net.online.parameters(), lr=0.01, alpha=0.95, centered=True)
    losses, step = [], 0
    for _ in range(2):
        for *values, weight in in_batches(8, *columns, importance):
            value, wanted = net(*values)
            loss = (weight * F.smooth_l1_loss(value, wanted, reduction="none")).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.online.parameters(), 0.1)
            optimizer.step()
            step += 1
            if step % 3 == 0:
                net.target.load_state_dict(net.online.state_dict())
            losses.append(loss.item())

    def weighted(outputs: tuple[Tensor, Tensor], weight: Tensor) -> Tensor:
        return (weight * F.smooth_l1_loss(*outputs, reduction="none")).mean()

    ours_net = DoubleQ()
    task = surestep.Task(
        ours_net,
        weighted,
        train=dict(zip(names, columns, strict=True)) | {"weight": importance},
        inputs=lambda batch: ({name: batch[name] for name in names}, batch["weight"]),
    )
    options = {"name": "rmsprop", "lr": 0.01, "alpha": 0.95, "centered": True}
    config = plain_config(
        epochs=2, batch_size=8, micro_batch_size=3, max_grad_norm=0.1, optim=options
    )
    session = prepare(task, config, callbacks=[CopyEvery()])
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])


class ActorCritic(nn.Module):
    """A trunk with a policy and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.policy, self.value = mlp(3, 7, 5), mlp(5, 5, 4), mlp(5, 5, 1)

    def forward(self, state: Tensor) -> dict[str, Tensor]:
        hidden = self.trunk(state).tanh()
        return {"logits": self.policy(hidden), "value": self.value(hidden)[:, 0]}


def ppo(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the clipped objective, the loss of the value, and the entropy."""
    chosen = torch.distributions.Categorical(logits=outputs["logits"])
    ratio = (chosen.log_prob(targets["action"]) - targets["log_p"]).exp()
    advantage = targets["advantage"]
    clipped = ratio.clamp(0.8, 1.2) * advantage
    return {
        "policy": -torch.min(ratio * advantage, clipped).mean(),
        "value": 0.5 * (outputs["value"] - targets["returns"]).square().mean(),
        "entropy": -0.01 * chosen.entropy().mean(),
    }


def test_clipped_policy_gradient_over_rollouts_that_are_collected_between_epochs() -> None:
    def collect(net: nn.Module, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        made = torch.Generator().manual_seed(seed)
        state = torch.randn(17, 3, generator=made, dtype=torch.float64)
        with torch.no_grad():
            outputs = net(state)
            log_p = outputs["logits"].log_softmax(1)
            action = torch.multinomial(log_p.exp(), 1, generator=made)[:, 0]
            returns = (action == (state[:, 0] > 0).long()).double()
            advantage = returns - outputs["value"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_p = log_p.gather(1, action[:, None])[:, 0]
        found = {"action": action, "log_p": log_p, "returns": returns, "advantage": advantage}
        return state, found

    net = ActorCritic()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-5)
    losses, step = [], 0
    for rollout in range(3):
        state, targets = collect(net, rollout)
        for first in range(0, 17, 5):
            part = {name: value[first : first + 5] for name, value in targets.items()}
            loss = sum(ppo(net(state[first : first + 5]), part).values())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
            step += 1

    ours_net = ActorCritic()
    state, targets = collect(ours_net, 0)
    data = {"state": state, **targets}
    task = surestep.Task(
        ours_net,
        ppo,
        train=data,
        inputs=lambda batch: (
            batch["state"],
            {name: value for name, value in batch.items() if name != "state"},
        ),
    )
    adam = {"name": "adam", "lr": 0.01, "eps": 1e-5, "momentum": surestep.NOT_SET}
    config = plain_config(epochs=3, batch_size=5, micro_batch_size=2, max_grad_norm=0.5, optim=adam)
    session = prepare(task, config)
    ours = []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 4 == 0:  # the next rollout, in place
            state, targets = collect(ours_net, result.step // 4)
            for name, value in {"state": state, **targets}.items():
                data[name].copy_(value)

    assert_same([losses, weights(net)], [ours, weights(ours_net)])


def test_own_batches_of_rollouts_in_a_loop_by_hand() -> None:
    net = mlp(3, 7, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []

    def batches(step: int) -> list[tuple[Tensor, Tensor]]:
        g = torch.Generator().manual_seed(step)
        sizes = (3, 7, 1)
        return [(torch.randn(n, 3, generator=g).double(), torch.arange(n) % 4) for n in sizes]

    for step in range(5):
        x, y = (torch.cat(each) for each in zip(*batches(step), strict=True))
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    ours_net = mlp(3, 7, 4)

    def by_hand(logits: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(logits.log_softmax(1), y)

    task = surestep.Task(ours_net, by_hand, train=(STATES, ACTIONS))
    config = plain_config(max_steps=100, batch_size=5, optim={"momentum": 0.9})
    session = prepare(task, config)
    ours = [float(session.train_step(batches(step)).loss) for step in range(5)]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])


class Physics(nn.Module):
    """A function whose second derivative is in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(1, 11, 1)
        self.stiffness = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            u = self.net(t)
            (speed,) = torch.autograd.grad(u.sum(), t, create_graph=True)
            (bend,) = torch.autograd.grad(speed.sum(), t, create_graph=True)
        return u, bend + self.stiffness * u


def of_physics(outputs: tuple[Tensor, Tensor], measured: Tensor) -> Tensor:
    """Return the residual everywhere, and the distance where something was measured."""
    u, residual = outputs
    seen = ~measured.isnan()
    distance = torch.where(seen, u - measured.nan_to_num(), torch.zeros_like(u))
    return residual.square().mean() + 5 * distance.square().mean()


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_differential_equation_that_is_solved_by_curvature_search(search: str | None) -> None:
    t = torch.linspace(0, 2, 13, dtype=torch.float64)[:, None]
    measured = torch.where(torch.arange(13)[:, None] % 4 == 0, t.cos(), torch.nan)
    net = Physics()
    optimizer = torch.optim.LBFGS(
        net.parameters(), lr=0.1, max_iter=5, history_size=4, line_search_fn=search
    )
    losses = []
    for _ in range(4):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = of_physics(net(t), measured)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    value = of_physics(net(t[:7]), measured[:7]).item()

    ours_net = Physics()
    task = surestep.Task(ours_net, of_physics, train=(t, measured), val=(t[:7], measured[:7]))
    options = {"name": "lbfgs", "max_iter": 5, "history_size": 4, "line_search_fn": search}
    unset = {"momentum": surestep.NOT_SET, "weight_decay": surestep.NOT_SET}
    config = plain_config(
        epochs=4,
        batch_size=13,
        micro_batch_size=5,
        on_nonfinite="skip",  # what was not measured is NaN
        optim=options | unset | {"lr": 0.1},
        validation={"batch_size": 3},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]

    # Another order of a sum grows with each evaluation of the search.
    vectors = [nn.utils.parameters_to_vector(each.parameters()) for each in (net, ours_net)]
    assert torch.allclose(*vectors, rtol=1e-8)
    assert torch.allclose(torch.tensor(losses), torch.tensor(ours), rtol=1e-8)
    assert abs(session.evaluate()["val/loss"] - value) < 1e-8 * value


class Windows(nn.Module):
    """A GRU cell over a window, from a state that is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells = nn.LSTM(2, 5, batch_first=True)
        self.head = nn.Linear(5, 2)
        self.double()

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        hidden, state = self.cells(x, state)
        return self.head(hidden), state


def test_state_is_carried_over_windows_and_evaluations_do_not_move_it() -> None:
    series = torch.randn(3 * 29 + 1, 2, generator=torch.Generator().manual_seed(2)).double()
    val = torch.randn(3 * 11 + 1, 2, generator=torch.Generator().manual_seed(3)).double()

    def windows(data: Tensor, length: int) -> list[tuple[Tensor, Tensor]]:
        """Return the full windows of three lanes, each with the values that follow."""
        per_lane = (len(data) - 1) // (3 * length) * length
        x = data[: 3 * per_lane].view(3, per_lane, 2)
        y = data[1 : 3 * per_lane + 1].view(3, per_lane, 2)
        parts = range(0, per_lane, length)
        return [(x[:, at : at + length], y[:, at : at + length]) for at in parts]

    def zero() -> tuple[Tensor, Tensor]:
        return torch.zeros(1, 3, 5).double(), torch.zeros(1, 3, 5).double()

    net = Windows()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses, validated = [], []
    for _ in range(2):
        state = zero()
        for x, y in windows(series, 7):
            outputs, state = net(x, state)
            state = (state[0].detach(), state[1].detach())
            loss = F.mse_loss(outputs, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            with torch.no_grad():
                other, total, count = zero(), 0.0, 0
                for a, b in windows(val, 7):
                    found, other = net(a, other)
                    total += F.mse_loss(found, b, reduction="sum").item()
                    count += b.numel()
            validated.append(total / count)

    ours_net = Windows()
    start = (torch.zeros(1, 1, 5).double(), torch.zeros(1, 1, 5).double())
    task = surestep.Task(
        surestep.StatefulRNN(ours_net, start, lanes=3, dim=1),
        nn.MSELoss(),
        train=surestep.BPTTDataset(series, lanes=3, length=7),
        val=surestep.BPTTDataset(val, lanes=3, length=7),
    )
    config = plain_config(
        epochs=2,
        batch_size=3,
        data={"shuffle": surestep.NOT_SET},
        optim={"momentum": 0.9},
        validation={"batch_size": 3},
    )
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        evaluated.append(session.evaluate()["val/loss"])

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])


class Critic(nn.Module):
    """A critic whose gradient of the inputs is penalized in the model, on drawn points."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 7, 1)

    def forward(self, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share = torch.rand(len(real), 1).double()
        with torch.enable_grad():
            between = (share * real + (1 - share) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(
                self.net(between).sum(), between, create_graph=self.training
            )
        return self.net(real), self.net(fake), slope


def wasserstein(outputs: tuple[Tensor, ...], _: Any = None) -> dict[str, Tensor]:
    """Return the distance and the penalty."""
    real, fake, slope = outputs
    return {
        "distance": (fake - real).mean(),
        "penalty": 10 * (slope.norm(dim=1) - 1).square().mean(),
    }


def test_gradient_penalty_in_the_model_with_evaluations_that_differentiate() -> None:
    net = Critic()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for step, (real, fake) in enumerate(in_batches(6, STATES[:29], NEXT[:29])):
        torch.manual_seed(seed_of("model", 0, step, 6 * step))
        loss = sum(wasserstein(net(real, fake)).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    total = 0.0
    for first, (real, fake) in zip((0, 5, 10), in_batches(5, STATES[29:], NEXT[29:]), strict=True):
        torch.manual_seed(seed_of("evaluate", 0, first, 0, "val"))
        value = sum(wasserstein(net(real, fake)).values())
        total += float(value.detach()) * len(real)

    ours_net = Critic()
    task = surestep.Task(
        ours_net,
        wasserstein,
        train=(STATES[:29], NEXT[:29]),
        val=(STATES[29:], NEXT[29:]),
        inputs=lambda batch: (tuple(batch), None),
    )
    config = plain_config(epochs=1, batch_size=6, optim={"lr": 0.01}, validation={"batch_size": 5})
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same(total / 12, session.evaluate()["val/loss"])
