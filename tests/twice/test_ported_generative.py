"""Generative models as people write them: adversaries, noise and flows."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, seed_of, weights

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(31, 5, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(0, 3, (31,), generator=GENERATOR)
VAL = torch.randn(13, 5, generator=GENERATOR, dtype=torch.float64)


def adam(**options: Any) -> dict[str, Any]:
    """Return the options of Adam; those of SGD are not set."""
    return {"name": "adam", "momentum": surestep.NOT_SET, "lr": 0.01} | options


class Gan(nn.Module):
    """A generator with BatchNorm and a discriminator, conditional on labels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7))
        self.generator.extend([nn.ReLU(), nn.Linear(7, 5)]).double()
        self.discriminator = nn.Sequential(nn.Linear(8, 7), nn.LeakyReLU(0.2), nn.Linear(7, 1))
        self.discriminator.double()


def judge(net: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Return the logits of samples with their classes."""
    return net(torch.cat([x, F.one_hot(labels, 3).double()], 1))[:, 0]


def test_conditional_gan_with_batch_norm_and_smoothed_labels() -> None:
    net = Gan()
    of_d = torch.optim.Adam(net.discriminator.parameters(), lr=0.02, betas=(0.5, 0.999))
    of_g = torch.optim.Adam(net.generator.parameters(), lr=0.01, betas=(0.5, 0.999))
    losses, step = [], 0
    for _ in range(2):
        for x, labels in in_batches(6, X[:30], LABELS[:30]):
            made = torch.Generator().manual_seed(seed_of("noise", 0, step, 0, 0))
            z = torch.randn(len(x), 2, generator=made).double()
            wanted = torch.cat([z, F.one_hot(labels, 3).double()], 1)
            fake = net.generator(wanted)
            of_d.zero_grad()
            real_logits = judge(net.discriminator, x, labels)
            fake_logits = judge(net.discriminator, fake.detach(), labels)
            d_loss = F.binary_cross_entropy_with_logits(
                real_logits, torch.full_like(real_logits, 0.9)
            ) + F.binary_cross_entropy_with_logits(fake_logits, torch.zeros_like(fake_logits))
            d_loss.backward()
            of_d.step()
            of_g.zero_grad()
            fake_logits = judge(net.discriminator, fake, labels)
            g_loss = F.binary_cross_entropy_with_logits(fake_logits, torch.ones_like(fake_logits))
            g_loss.backward()
            of_g.step()
            losses.append([d_loss.item(), g_loss.item()])
            step += 1

    found: list[list[float]] = []

    def train_both(manual_step: surestep.ManualStep) -> None:
        models = manual_step.models
        bce = F.binary_cross_entropy_with_logits
        for micro in manual_step.micro_batches("discriminator"):
            x, labels = micro.args
            z = manual_step.randn(micro, 2).double()
            kept = models["generator"](torch.cat([z, F.one_hot(labels, 3).double()], 1))
            real = judge(models["discriminator"], x, labels)
            fake = judge(models["discriminator"], kept.detach(), labels)
            loss = bce(real, torch.full_like(real, 0.9)) + bce(fake, torch.zeros_like(fake))
            manual_step.backward(loss, micro)
            found.append([loss.item()])
        manual_step.step("discriminator")
        for micro in manual_step.micro_batches("generator"):
            fake = judge(models["discriminator"], kept, micro.args[1])
            loss = bce(fake, torch.ones_like(fake))
            manual_step.backward(loss, micro)
            found[-1].append(loss.item())
        manual_step.step("generator")

    ours_net = Gan()
    options: dict[str, Any] = {"name": "adam", "betas": (0.5, 0.999), "weight_decay": 0.0}
    task = surestep.Task(
        ours_net,
        train=(X[:30], LABELS[:30]),
        step=train_both,
        optimizers={
            "discriminator": surestep.Optim(lr=0.02, **options),
            "generator": surestep.Optim(lr=0.01, **options),
        },
    )
    session = prepare(task, plain_config(epochs=2, batch_size=6))
    sums = [float(result.loss) for result in session.steps()]

    assert_same(losses, found)
    assert_same([a + b for a, b in losses], sums)
    assert_same(weights(net), weights(ours_net))


ALPHAS = torch.linspace(0.99, 0.01, 11, dtype=torch.float64)


class Denoiser(nn.Module):
    """Predicts the noise of a sample at a time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.times = nn.Embedding(11, 3)
        self.net = nn.Sequential(nn.Linear(8, 7), nn.SiLU(), nn.Linear(7, 5))
        self.double()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(torch.cat([x, self.times(t)], 1))


def add_noise(batch: tuple[Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Draw times and noise."""
    (x,) = batch
    t = torch.randint(0, 11, (len(x),))
    noise = torch.randn(x.shape).to(x)
    a = ALPHAS[t][:, None]
    return (a.sqrt() * x + (1 - a).sqrt() * noise, t), noise


def test_diffusion_that_draws_times_and_noise_in_its_inputs() -> None:
    net = Denoiser()
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.0)
    losses, validated, step = [], [], 0
    for epoch in range(2):
        for first, batch in zip(range(0, 31, 6), in_batches(6, X), strict=True):
            torch.manual_seed(seed_of("inputs", 0, epoch, first, "train"))
            inputs, noise = add_noise(batch)  # type: ignore[arg-type]
            optimizer.zero_grad()
            loss = F.mse_loss(net(*inputs), noise)
            loss.backward()
            optimizer.step()
            average.update_parameters(net)
            losses.append(loss.item())
            step += 1
        total = 0.0
        for first, batch in zip(range(0, 13, 4), in_batches(4, VAL), strict=True):
            torch.manual_seed(seed_of("inputs", 0, 0, first, "val"))
            inputs, noise = add_noise(batch)  # type: ignore[arg-type]
            with torch.no_grad():
                total += F.mse_loss(average(*inputs), noise).item() * len(noise)
        validated.append(total / 13)

    ours_net = Denoiser()
    task = surestep.Task(ours_net, nn.MSELoss(), train=(X,), val=(VAL,), inputs=add_noise)
    config = plain_config(
        epochs=2,
        batch_size=6,
        optim=adam(name="adamw"),
        average={"kind": "ema", "decay": 0.9, "warmup": False},
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 6 == 0:
            evaluated.append(session.evaluate()["val/loss"])

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])


class Coupling(nn.Module):
    """An affine coupling of one half on the other, of a flow with a permutation."""

    order: Tensor

    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 4)).double()
        self.register_buffer("order", torch.arange(4).flip(0) if flip else torch.arange(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, other = x[:, self.order].chunk(2, 1)
        scale, shift = self.net(kept).chunk(2, 1)
        return torch.cat([kept, other * scale.exp() + shift], 1), scale.sum(1)


class ActNorm(nn.Module):
    """Scales and shifts; its first batch in training sets both."""

    is_set: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(4, dtype=torch.float64))
        self.shift = nn.Parameter(torch.zeros(4, dtype=torch.float64))
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not self.is_set:
            with torch.no_grad():
                self.scale.copy_(-x.std(0).log())
                self.shift.copy_(-x.mean(0))
                self.is_set.fill_(True)
        return (x + self.shift) * self.scale.exp(), self.scale.sum().expand(len(x))


class Flow(nn.Module):
    """A normalizing flow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([ActNorm(), Coupling(True), ActNorm(), Coupling(False)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for layer in self.layers:
            x, log_determinant = layer(x)
            total = total + log_determinant
        return x, total


def negative_log_likelihood(outputs: tuple[Tensor, Tensor], _: Any = None) -> Tensor:
    """Return the bits of the data under a standard normal base."""
    z, log_determinant = outputs
    base = -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)
    return -(base + log_determinant).mean()


def test_flow_whose_normalization_is_set_by_its_first_batch() -> None:
    x, val = X[:, :4] * 2 + 1, VAL[:, :4]
    net = Flow()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.01)
    losses, validated = [], []
    for _ in range(2):
        net.train()
        for (batch,) in in_batches(6, x):
            optimizer.zero_grad()
            loss = negative_log_likelihood(net(batch))
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 3.0)
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            validated.append(negative_log_likelihood(net(val)).item())

    ours_net = Flow()
    task = surestep.Task(
        ours_net,
        negative_log_likelihood,
        train=(x,),
        val=(val,),
        inputs=lambda batch: (batch[0], None),
    )
    config = plain_config(
        epochs=2,
        batch_size=6,
        max_grad_norm=3.0,
        optim=adam(weight_decay=0.01, groups=["* decay=0.01"]),
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 6 == 0:
            evaluated.append(session.evaluate()["val/loss"])

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])
