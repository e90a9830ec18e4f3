"""Variational autoencoders: their losses anneal, count, and differ in training."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, seed_of, weights

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(31, 5, generator=GENERATOR, dtype=torch.float64)
VAL = torch.randn(13, 5, generator=GENERATOR, dtype=torch.float64)


def adam(**options: Any) -> dict[str, Any]:
    """Return the options of Adam; those of SGD are not set."""
    return {"name": "adam", "momentum": surestep.NOT_SET, "lr": 0.01} | options


class Autoencoder(nn.Module):
    """A variational autoencoder: its code is drawn in training, and its mean in evaluations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)).double()
        self.decoder = nn.Linear(2, 5).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean
        if self.training:
            code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


class Elbo(nn.Module):
    """A loss whose KL weight is set from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 0.0

    def forward(self, outputs: tuple[Tensor, ...], x: Tensor) -> dict[str, Tensor]:
        recovered, mean, log_variance = outputs
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return {"recovery": (recovered - x).square().sum(1).mean(), "kl": self.beta * kl}


class Anneal(surestep.Callback):
    """Raises the KL weight after each step, up to 1."""

    def __init__(self, loss: Elbo, steps: int) -> None:
        self.loss, self.steps = loss, steps

    def on_start(self, state: Any) -> None:
        self.loss.beta = min(1.0, state.progress.step / self.steps)

    def on_step(self, state: Any, result: Any) -> None:
        self.loss.beta = min(1.0, result.step / self.steps)


def test_autoencoder_with_an_annealed_divergence() -> None:
    net, loss = Autoencoder(), Elbo()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses, validated, step = [], [], 0
    for _ in range(3):
        for first, (x,) in zip(range(0, 31, 6), in_batches(6, X), strict=True):
            net.train()
            loss.beta = min(1.0, step / 10)
            torch.manual_seed(seed_of("model", 0, step, first))
            optimizer.zero_grad()
            sum(loss(net(x), x).values()).backward()
            optimizer.step()
            step += 1
        loss.beta = min(1.0, step / 10)
        net.eval()
        with torch.no_grad():
            terms = loss(net(VAL), VAL)
        validated.append(float(sum(terms.values())))
        losses.append(float(terms["kl"]))

    ours_net, ours_loss = Autoencoder(), Elbo()
    task = surestep.Task(ours_net, ours_loss, train=(X, X), val=(VAL, VAL))
    config = plain_config(
        epochs=3,
        batch_size=6,
        optim=adam(),
        validation={"batch_size": 4},
    )
    seen: list[dict[str, float]] = []

    class See(surestep.Callback):
        def on_evaluate(self, state: Any, metrics: dict[str, float]) -> None:
            seen.append(metrics)

    callbacks = [Anneal(ours_loss, 10), See()]
    surestep.Trainer(task, config, run="runs/vae", callbacks=callbacks).fit()

    assert_same(validated, [each["val/loss"] for each in seen])
    assert_same(weights(net), weights(ours_net))


class CountingElbo(nn.Module):
    """A loss that anneals itself: it counts its training calls in a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
        recovered, mean, log_variance = outputs
        beta = (self.calls / 10).clamp(max=1.0).double()
        if self.training:
            self.calls += 1
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return (recovered - x).square().sum(1).mean() + beta * kl


def test_autoencoder_whose_loss_counts_its_calls_in_training() -> None:
    net, loss = Autoencoder(), CountingElbo()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses, validated, step = [], [], 0
    for _ in range(2):
        for first, (x,) in zip(range(0, 31, 6), in_batches(6, X), strict=True):
            net.train()
            loss.train()
            torch.manual_seed(seed_of("model", 0, step, first))
            optimizer.zero_grad()
            value = loss(net(x), x)
            value.backward()
            optimizer.step()
            losses.append(value.item())
            step += 1
        net.eval()
        loss.eval()
        with torch.no_grad():
            validated.append(float(loss(net(VAL), VAL)))

    ours_net, ours_loss = Autoencoder(), CountingElbo()
    task = surestep.Task(ours_net, ours_loss, train=(X, X), val=(VAL, VAL))
    config = plain_config(epochs=2, batch_size=6, optim={"lr": 0.01}, validation={"batch_size": 4})
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 6 == 0:
            evaluated.append(session.evaluate()["val/loss"])

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])


class WarmElbo:
    """A loss that counts its calls in an attribute, and is no module."""

    def __init__(self) -> None:
        self.calls = 0
        self.mean: Tensor | None = None

    def __call__(self, outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
        recovered, mean, log_variance = outputs
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        error = (recovered - x).square().sum(1).mean()
        now = error.detach()
        self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        self.calls += 1
        return error / self.mean + min(1.0, self.calls / 10) * kl


class WarmElboModule(nn.Module, WarmElbo):
    """The same as a module."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        WarmElbo.__init__(self)

    forward = WarmElbo.__call__
    __call__ = nn.Module.__call__


@pytest.mark.parametrize("kind", [WarmElbo, WarmElboModule, "method"])
def test_loss_that_keeps_a_count_and_a_mean_in_attributes(kind: Any) -> None:
    net, loss = Autoencoder(), WarmElbo()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for step, (x,) in enumerate(in_batches(6, X)):
        torch.manual_seed(seed_of("model", 0, step, 6 * step))
        optimizer.zero_grad()
        value = loss(net(x), x)
        value.backward()
        optimizer.step()
        losses.append(value.item())

    ours_net, ours_loss = Autoencoder(), WarmElbo() if kind == "method" else kind()
    given = ours_loss.__call__ if kind == "method" else ours_loss
    task = surestep.Task(ours_net, given, loss_is_separable=False, train=(X, X))
    session = prepare(task, plain_config(epochs=1, batch_size=6, optim={"lr": 0.01}))
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])


class WarmAutoencoder(Autoencoder):
    """An autoencoder that counts its training batches in an attribute, and returns the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        beta = min(1.0, self.batches / 10)
        if self.training:
            self.batches += 1
        return *super().forward(x), torch.full((len(x),), beta, dtype=torch.float64)


def weighted_elbo(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """Return the loss of WarmAutoencoder."""
    recovered, mean, log_variance, beta = outputs
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return ((recovered - x).square().sum(1) + beta * kl).mean()


def test_autoencoder_that_counts_its_batches_in_an_attribute() -> None:
    net = WarmAutoencoder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for step, (first, (x,)) in enumerate(zip(range(0, 31, 6), in_batches(6, X), strict=True)):
        torch.manual_seed(seed_of("model", 0, step, first))
        optimizer.zero_grad()
        value = weighted_elbo(net(x), x)
        value.backward()
        optimizer.step()
        losses.append(value.item())

    ours_net = WarmAutoencoder()
    task = surestep.Task(ours_net, weighted_elbo, train=(X, X))
    session = prepare(task, plain_config(epochs=1, batch_size=6, optim={"lr": 0.01}))
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
