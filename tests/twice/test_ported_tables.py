"""Tables, prices, survival and rare classes: losses that people write by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from surestep import samplers
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, seed_of, weights

GENERATOR = torch.Generator().manual_seed(13)
X = torch.randn(37, 4, generator=GENERATOR, dtype=torch.float64)
WORDS = torch.randint(0, 11, (37, 2), generator=GENERATOR)
Y = X[:, :1] * 2 - X[:, 1:2] + 0.3 * torch.randn(37, 1, generator=GENERATOR, dtype=torch.float64)
RARE = (X[:, 0] > 1).long()
TRAIN, VAL = slice(0, 23), slice(23, 37)
SGD: dict[str, Any] = {"name": "sgd", "weight_decay": 0.0, "momentum": 0.0}


def mlp(*sizes: int) -> nn.Sequential:
    """Return a small network with the same weights at each call."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2]))
    return net.double()


def by_hand(
    net: nn.Module, loss_of: Any, data: tuple[Tensor, ...], optimizer: torch.optim.Optimizer
) -> list[float]:
    """Return the losses of two epochs in batches of 6; the last one has 5."""
    losses = []
    for _ in range(2):
        for *x, y in in_batches(6, *data):
            optimizer.zero_grad()
            loss = loss_of(net(*x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def check(
    net: nn.Module, plain: list[float], value: float, task: surestep.Task, **options: Any
) -> dict[str, Any]:
    """Compare two epochs with uneven micro-batches; return the metrics."""
    config = plain_config(
        **{"epochs": 2, "batch_size": 6, "micro_batch_size": 4, "validation": {"batch_size": 5}}
        | options
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]
    assert isinstance(task.model, nn.Module)
    assert_same([plain, weights(net)], [ours, weights(task.model)])
    found = session.evaluate()
    assert_same(value, found["val/loss"])
    return found


class Table(nn.Module):
    """Two columns of categories with sparse gradients, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.Embedding(11, 3, sparse=True) for _ in range(2))
        self.body = nn.Sequential(nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 1))
        self.double()

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        found = [table(words[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([numbers, *found], 1))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_table_with_sparse_categories_that_are_trained_by_adagrad() -> None:
    net, ours_net = Table(), Table()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    losses = by_hand(net, F.mse_loss, (X[TRAIN], WORDS[TRAIN], Y[TRAIN]), optimizer)
    with torch.no_grad():
        outputs = net(X[VAL], WORDS[VAL])
    value = F.mse_loss(outputs, Y[VAL]).item()
    r2 = 1 - value / Y[VAL].var(correction=0).item()

    def explained(outputs: Tensor, y: Tensor) -> Tensor:
        return 1 - (outputs - y).square().mean() / (y - y.mean()).square().mean()

    task = surestep.Task(
        ours_net,
        nn.MSELoss(),
        train=(X[TRAIN], WORDS[TRAIN], Y[TRAIN]),
        val=(X[VAL], WORDS[VAL], Y[VAL]),
        metrics={
            "r2": surestep.whole_set(explained),
            "mae": lambda outputs, y: (outputs - y).abs().mean(),
        },
    )
    adagrad = {"name": "adagrad", "momentum": surestep.NOT_SET, "lr": 0.05}
    found = check(net, losses, value, task, optim=adagrad)

    assert_same([r2, F.l1_loss(outputs, Y[VAL]).item()], [found["val/r2"], found["val/mae"]])


class Uncertain(nn.Module):
    """Two tasks whose losses are weighted by learned uncertainties."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(4, 7, 3)
        self.log_variance = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.body(x)
        return found[:, :1], found[:, 1:], self.log_variance.expand(len(x), 2)


def uncertain_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> dict[str, Tensor]:
    """Return Kendall's losses of a number and a class."""
    number, logits, log_variance = outputs
    first, second = log_variance.unbind(1)
    value = (number[:, 0] - targets[:, 0]).square()
    kind = F.cross_entropy(logits, targets[:, 1].long(), reduction="none")
    return {
        "number": ((-first).exp() * value + first).mean(),
        "kind": ((-second).exp() * kind + second).mean(),
    }


def test_two_tasks_whose_uncertainties_are_learned_without_decay() -> None:
    targets = torch.cat([Y, RARE[:, None].double()], 1)
    net, ours_net = Uncertain(), Uncertain()
    groups = [
        {"params": net.body.parameters(), "weight_decay": 0.01},
        {"params": [net.log_variance], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    data = (X[TRAIN], targets[TRAIN])
    losses = by_hand(net, lambda o, t: sum(uncertain_loss(o, t).values()), data, optimizer)
    with torch.no_grad():
        value = float(sum(uncertain_loss(net(X[VAL]), targets[VAL]).values()))

    task = surestep.Task(ours_net, uncertain_loss, train=data, val=(X[VAL], targets[VAL]))
    optim = {"lr": 0.05, "weight_decay": 0.01, "groups": ["body decay=0.01"]}
    check(net, losses, value, task, optim=optim)


def pinball(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean pinball loss of three quantiles, each weighted on its own."""
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=outputs.dtype)
    errors = y - outputs
    return torch.max(levels * errors, (levels - 1) * errors).sum(1).mean()


def test_quantiles_by_hand_are_a_sum_over_quantiles() -> None:
    net, ours_net = mlp(4, 7, 3), mlp(4, 7, 3)
    losses = by_hand(net, pinball, (X[TRAIN], Y[TRAIN]), torch.optim.SGD(net.parameters(), 0.1))
    with torch.no_grad():
        outputs = net(X[VAL])
    covered = (outputs[:, :1] <= Y[VAL]) & (outputs[:, 2:] >= Y[VAL])

    def coverage(outputs: Tensor, y: Tensor) -> tuple[Tensor, int]:
        return ((outputs[:, :1] <= y) & (outputs[:, 2:] >= y)).sum(), len(y)

    task = surestep.Task(
        ours_net,
        pinball,
        train=(X[TRAIN], Y[TRAIN]),
        val=(X[VAL], Y[VAL]),
        metrics={"coverage": coverage},
    )
    found = check(net, losses, pinball(outputs, Y[VAL]).item(), task)

    assert_same(covered.double().mean().item(), found["val/coverage"])


def cox(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the negative partial likelihood of a batch, over its events."""
    time, event = targets.unbind(1)
    order = time.argsort(descending=True)
    risk, event = outputs[order, 0], event[order]
    return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum().clamp(min=1)


def concordance(risk: Tensor, targets: Tensor) -> float:
    """Return the share of comparable pairs in the right order."""
    time, event = targets.unbind(1)
    comparable = (time[:, None] < time[None]) & event[:, None].bool()
    risk = risk[:, 0]
    ties = (risk[:, None] == risk[None]).double() / 2
    right = (risk[:, None] > risk[None]).double() + ties
    return float(right[comparable].mean())


def test_survival_whose_likelihood_compares_the_samples_of_a_batch() -> None:
    time = torch.rand(37, generator=torch.Generator().manual_seed(1)).double()
    event = (torch.arange(37) % 3 > 0).double()
    targets = torch.stack([time, event], 1)
    net, ours_net = mlp(4, 7, 1), mlp(4, 7, 1)
    data = (X[TRAIN], targets[TRAIN])
    losses = by_hand(net, cox, data, torch.optim.SGD(net.parameters(), 0.1))
    with torch.no_grad():
        outputs = net(X[VAL])
        events = [(cox(o, t).item(), len(o)) for o, t in in_batches(5, outputs, targets[VAL])]

    task = surestep.Task(
        ours_net,
        cox,
        loss_is_separable=False,
        train=data,
        val=(X[VAL], targets[VAL]),
        metrics={"concordance": surestep.whole_set(concordance)},
    )
    value = sum(each * n for each, n in events) / 14
    found = check(net, losses, value, task, micro_batch_size=6)

    assert_same(concordance(outputs, targets[VAL]), found["val/concordance"])


def mixture_nll(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the negative log-likelihood of a mixture of three Gaussians."""
    logits, mean, log_scale = outputs.chunk(3, 1)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=logits),
        torch.distributions.Normal(mean, log_scale.exp()),
    )
    return -mixture.log_prob(y[:, 0]).mean()


def test_mixture_density_network_with_falling_rate_and_clipping() -> None:
    net, ours_net = mlp(4, 7, 9), mlp(4, 7, 9)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses = []
    for _ in range(2):
        for x, y in in_batches(6, X[TRAIN], Y[TRAIN]):
            optimizer.zero_grad()
            loss = mixture_nll(net(x), y)
            loss.backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.05)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    with torch.no_grad():
        value = mixture_nll(net(X[VAL]), Y[VAL]).item()

    task = surestep.Task(ours_net, mixture_nll, train=(X[TRAIN], Y[TRAIN]), val=(X[VAL], Y[VAL]))
    check(
        net,
        losses,
        value,
        task,
        clip_value=0.05,
        schedule={"name": "exponential", "gamma": 0.5, "interval": "1 epoch"},
        optim={"momentum": 0.5},
    )


def focal(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the focal loss of RetinaNet: divided by the positives, at least one."""
    y = y.double()[:, None]
    p = outputs.sigmoid()
    ce = F.binary_cross_entropy_with_logits(outputs, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    alpha = 0.25 * y + 0.75 * (1 - y)
    return (alpha * (1 - p_t) ** 2 * ce).sum() / y.sum().clamp(min=1)


def test_focal_loss_by_hand_is_divided_by_the_positives_of_the_batch() -> None:
    rare = RARE.clone()
    rare[[2, 9, 15, 20]] = 1  # each full batch has some
    net, ours_net = mlp(4, 7, 1), mlp(4, 7, 1)
    data = (X[TRAIN], rare[TRAIN])
    losses = by_hand(net, focal, data, torch.optim.SGD(net.parameters(), 0.5))
    with torch.no_grad():
        value = focal(net(X[VAL]), rare[VAL]).item()

    task = surestep.Task(
        ours_net,
        focal,
        items=lambda batch: max(1, int(batch[1].sum())),
        loss_is_separable=False,  # a micro-batch without positives divides by 1
        train=data,
        val=(X[VAL], rare[VAL]),
    )
    options = {"optim": {"lr": 0.5}, "validation": {"batch_size": 14}}
    check(net, losses, value, task, micro_batch_size=6, **options)


def smoothed(outputs: Tensor, y: Tensor) -> Tensor:
    """Return label smoothing as it is written by hand, with weights of the classes."""
    w = torch.tensor([0.5, 2.0], dtype=outputs.dtype)
    log_p = outputs.log_softmax(1)
    nll = -log_p.gather(1, y[:, None])[:, 0]
    uniform = -log_p.mean(1)
    return ((0.9 * nll + 0.1 * uniform) * w[y]).sum() / w[y].sum()


@pytest.mark.parametrize("replacement", [True, False])
def test_smoothed_labels_with_weights_and_balanced_draws(replacement: bool) -> None:
    net, ours_net = mlp(4, 7, 2), mlp(4, 7, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    losses = []
    counts = RARE[TRAIN].bincount()
    chances = 1 / counts[RARE[TRAIN]].double()
    for epoch in range(2):
        made = torch.Generator().manual_seed(seed_of("order", 0, epoch))
        order = torch.randperm(23, generator=made)
        if replacement:
            made = torch.Generator().manual_seed(seed_of("order", 0, epoch))
            order = torch.multinomial(chances, 23, True, generator=made)
        for part in order.split(6):
            optimizer.zero_grad()
            loss = smoothed(net(X[TRAIN][part]), RARE[TRAIN][part])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        value = smoothed(net(X[VAL]), RARE[VAL]).item()

    task = surestep.Task(
        ours_net,
        smoothed,
        items=lambda batch: float(torch.tensor([0.5, 2.0])[batch[1]].sum()),
        train=(X[TRAIN], RARE[TRAIN]),
        val=(X[VAL], RARE[VAL]),
        sampler=samplers.balanced() if replacement else samplers.shuffled(),
    )
    config = surestep.Config(
        epochs=2,
        batch_size=6,
        micro_batch_size=4,
        max_grad_norm=None,
        schedule="constant",
        logging={"progress": "quiet"},
        optim=SGD | {"lr": 0.2},
        validation={"batch_size": 5},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]
    found = session.evaluate()

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same(value, found["val/loss"])
    assert not math.isnan(value)
