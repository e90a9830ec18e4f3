"""Losses of torch that are changed by hooks or subclasses, and losses with parts of the model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

G = torch.Generator().manual_seed(43)
X = torch.randn(23, 4, generator=G, dtype=torch.float64)  # batches of 7, the last of two
NUMBERS = torch.randn(23, 2, generator=G, dtype=torch.float64)
CLASSES = torch.randint(0, 3, (23,), generator=G)
WORDS = torch.randint(0, 20, (23,), generator=G)
IGNORED = CLASSES.clone()
IGNORED[::4] = -100
WEIGHT = torch.tensor([1.0, 2.0, 0.3], dtype=torch.float64)


def net(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def compare(make: Callable[[], nn.Module], loss: Any, mean: Any, data: Any, **task: Any) -> None:
    """Compare losses and weights; `mean(model, *batch)` is the loss of the plain program."""
    plain_net, losses = make(), []
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    for _ in range(2):
        for batch in in_batches(7, X, data):
            optimizer.zero_grad()
            value = mean(plain_net, *batch)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    for size in (7, 3, 1):
        ours_net = make()
        given = {"train": (X, data)} | task
        session = prepare(
            surestep.Task(ours_net, loss, **given),
            plain_config(epochs=2, batch_size=7, micro_batch_size=size),
        )
        ours = [float(result.loss) for result in session.steps()]
        assert_same([losses, weights(plain_net)], [ours, weights(ours_net)])


def patched() -> nn.Module:
    """Return a loss whose method was replaced in the object."""
    loss = nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1)
    of_torch = loss.forward
    loss.forward = lambda outputs, targets: 0.5 * of_torch(outputs, targets)  # type: ignore[method-assign]
    return loss


def hooked() -> nn.Module:
    loss = nn.CrossEntropyLoss(weight=WEIGHT)
    loss.register_forward_hook(lambda _, __, value: 0.8 * value)
    loss.register_forward_pre_hook(lambda _, given: (given[0] * 2, given[1]))
    return loss


class Doubled(nn.CrossEntropyLoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return 2 * super().forward(input, target) + 0.1 * input.square().mean()


LOSSES: dict[str, tuple[Callable[[], Any], Tensor]] = {
    "patched": (patched, CLASSES),
    "hooked": (hooked, IGNORED),
    "subclass": (Doubled, CLASSES),
    "partial": (lambda: partial(F.huber_loss, delta=0.3), NUMBERS),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_torch_that_is_changed_has_its_changed_mean(name: str) -> None:
    make, targets = LOSSES[name]
    loss = make()
    outputs = 2 if targets is NUMBERS else 3
    compare(lambda: net(outputs), make(), lambda model, x, t: loss(model(x), t), targets)


def test_hook_of_a_loss_of_torch_sees_its_means() -> None:
    def watched(seen: list[float]) -> nn.Module:
        loss = nn.MSELoss()
        loss.register_forward_hook(lambda *given: seen.append(given[2].item()))
        return loss

    found: list[float] = []
    task = surestep.Task(net(2), watched(found), train=(X, NUMBERS))
    session = prepare(task, plain_config(epochs=1, batch_size=7))
    found.clear()  # of the checks before the run
    losses = [float(result.loss) for result in session.steps()]
    assert_same(losses, found)


class Uncertain(nn.Module):
    """Two tasks with learned uncertainties, and codes of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(5)
        self.scale = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.codes = nn.Embedding(5, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        code = self.codes(torch.cdist(x, self.codes.weight).argmin(1))
        return self.net(x + (code - x).detach() + 0 * code), code, x, self.scale


def uncertain_loss(outputs: Any, target: Tensor) -> Any:
    found, code, x, scale = outputs
    numbers = F.mse_loss(found[:, 3:], code[:, :2].detach())
    return {
        "classes": (-scale[0]).exp() * F.cross_entropy(found[:, :3], target) + scale[0],
        "numbers": (-scale[1]).exp() * numbers + scale[1],
        "codes": F.mse_loss(code, x),
    }


def test_learned_uncertainties_and_codes_of_a_table_are_trained() -> None:
    def mean(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        return sum(uncertain_loss(model(x), target).values(), torch.zeros(()))

    compare(Uncertain, uncertain_loss, mean, CLASSES)


class Margin(nn.Module):
    """Logits that depend on the targets, and a loss that a part of the model computes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(5)
        torch.manual_seed(1)
        self.centers = nn.Parameter(torch.randn(20, 5, dtype=torch.float64))
        self.words = nn.AdaptiveLogSoftmaxWithLoss(5, 20, [4, 10], div_value=2.0).double()

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        hidden = self.net(x)
        cosine = F.normalize(hidden) @ F.normalize(self.centers).T
        angle = cosine.clamp(-1 + 1e-7, 1 - 1e-7).acos() + 0.3 * F.one_hot(labels, 20)
        loss = F.cross_entropy(8 * angle.cos(), labels) + self.words(hidden, labels).loss
        return {"loss": loss}


def test_margin_of_the_targets_and_adaptive_softmax_in_the_model() -> None:
    compare(
        Margin,
        "model",
        lambda model, *batch: model(*batch)["loss"],
        WORDS,
        train={"x": X, "labels": WORDS},
    )
