"""Attributes that a model or a loss changes in its forward: checks before the run restore them."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanMetric

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, train

G = torch.Generator().manual_seed(11)
X = torch.randn(37, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (37,), generator=G)


class Meter:
    """Sums what it is given, as many loops do."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self.all: list[float] = []

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.all.append(value)


class Noting(nn.Module):
    """Keeps something of each training batch in an attribute."""

    def __init__(self, kept: Any, note: Callable[[Any, Tensor], object], lazy: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.LazyLinear(4).double() if lazy else nn.Linear(4, 4).double()
        self.last = nn.Linear(4, 3).double()
        self.kept, self.note = kept, note
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        self.last_batch = getattr(self, "last_batch", 0) + 1  # new in the first forward
        self.note(self.kept, x)
        return self.last(self.first(x))

    def noted(self) -> Any:
        kept = self.kept
        if isinstance(kept, dict) and "one" in kept:
            kept = [vars(kept["one"]), vars(kept["two"][1][0])]
        kept = kept.inner.count if isinstance(kept, SimpleNamespace) else kept
        kept = [kept.count, kept.total, kept.all] if isinstance(kept, Meter) else kept
        kept = float(kept.compute()) if isinstance(kept, MeanMetric) else kept
        kept = list(kept) if isinstance(kept, deque) else kept
        return [kept, self.batches, self.last_batch]


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], object]]] = {
    "tensor": (
        lambda: torch.zeros(4, dtype=torch.float64),
        lambda kept, x: kept.mul_(0.9).add_(x.mean(0)),
    ),
    "array": (lambda: np.zeros(4), lambda kept, x: np.add(kept, x.sum(0).numpy(), out=kept)),
    "list": (list, lambda kept, x: kept.append(float(x.sum()))),
    "deque": (lambda: deque(maxlen=50), lambda kept, x: kept.append(float(x.sum()))),
    "counter": (Counter, lambda kept, x: kept.update(samples=len(x))),
    "nested": (lambda: {"sums": [torch.zeros(1)]}, lambda kept, x: kept["sums"][0].add_(len(x))),
    "meter": (Meter, lambda kept, x: kept.add(float(x.sum()))),
    "metric": (MeanMetric, lambda kept, x: kept.update(x.sum(), len(x))),
    "meters": (
        lambda: {"one": Meter(), "two": (Meter(), [Meter()])},
        lambda kept, x: [kept["one"].add(float(x.sum())), kept["two"][1][0].add(1.0)],
    ),
    "namespace": (
        lambda: SimpleNamespace(inner=SimpleNamespace(count=0)),
        lambda kept, x: setattr(kept.inner, "count", kept.inner.count + len(x)),
    ),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_that_a_forward_changes_in_place_are_of_the_steps_alone(kind, lazy) -> None:
    make, note = KINDS[kind]
    net = Noting(make(), note, lazy)
    for x, _ in in_batches(7, X, Y):
        net(x)
    ours = Noting(make(), note, lazy)
    task = surestep.Task(ours, nn.CrossEntropyLoss(), train=(X, Y))
    train(task, plain_config(epochs=1, batch_size=7))
    assert_same(net.noted(), ours.noted())


class EarlyTargets(nn.Module):
    """Pulls the outputs to a running mean of the outputs for each class, kept in a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.means = torch.zeros(3, 3, dtype=torch.float64)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        chance = outputs.softmax(1)
        if self.training:
            for one in targets.unique().tolist():
                self.means[one].mul_(0.7).add_(chance[targets == one].detach().mean(0), alpha=0.3)
        pull = (1 - (self.means[targets] * chance).sum(1)).log().mean()
        return functional.cross_entropy(outputs, targets) + 3 * pull


def test_loss_with_running_targets_begins_with_those_of_the_first_step() -> None:
    torch.manual_seed(0)
    net, loss = nn.Linear(4, 3).double(), EarlyTargets()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in in_batches(7, X, Y):
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
    torch.manual_seed(0)
    ours, own = nn.Linear(4, 3).double(), EarlyTargets()
    train(
        surestep.Task(ours, own, train=(X, Y), loss_is_separable=False),
        plain_config(epochs=1, batch_size=7),
    )
    assert_same([net.weight, loss.means], [ours.weight, own.means])


def test_search_for_the_cause_of_a_skipped_step_changes_no_attributes() -> None:
    bad = X.clone()
    bad[10] = torch.nan
    make, note = KINDS["list"]
    ours = Noting(make(), note, lazy=False)
    task = surestep.Task(ours, nn.CrossEntropyLoss(), train=(bad, Y))
    doctor = {"ignore": ["SS609=a value that is not finite is what this test is about"]}
    config = plain_config(epochs=1, batch_size=7, on_nonfinite="skip", doctor=doctor)
    for _ in prepare(task, config).steps():
        pass
    assert_same([float(x.sum()) for x, _ in in_batches(7, bad, Y)], ours.kept)


class Standardize:
    """Standardizes inputs by the mean and the square of all values so far."""

    def __init__(self) -> None:
        self.count, self.sums = 0, torch.zeros(2, 4, dtype=torch.float64)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.count += len(x)
        self.sums += torch.stack([x.sum(0), x.square().sum(0)])
        mean, square = self.sums / self.count
        return (x - mean) / (square - mean.square()).sqrt(), y


def test_transform_with_running_statistics_begins_with_the_first_batch() -> None:
    torch.manual_seed(0)
    net, plain = nn.Linear(4, 3).double(), Standardize()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in in_batches(7, X, Y):
        optimizer.zero_grad()
        x, y = plain(x, y)
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    torch.manual_seed(0)
    net_of_ours, own = nn.Linear(4, 3).double(), Standardize()
    task = surestep.Task(net_of_ours, nn.CrossEntropyLoss(), train=(X, Y), batch_transform=own)
    train(task, plain_config(epochs=1, batch_size=7))
    assert_same([net.weight, plain.sums], [net_of_ours.weight, own.sums])


class WorstSoFar:
    """A metric that is the mean of a batch, and notes the largest one."""

    def __init__(self) -> None:
        self.worst: list[float] = []

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wrong = (outputs.argmax(1) != targets).double().mean()
        self.worst.append(float(wrong))
        return wrong


def test_metric_that_notes_its_values_has_those_of_evaluations_alone() -> None:
    torch.manual_seed(0)
    net, metric = nn.Linear(4, 3).double(), WorstSoFar()
    config = plain_config(epochs=1, batch_size=7, validation={"batch_size": 7})
    data: Any = {"train": (X, Y), "val": (X, Y)}
    session = prepare(
        surestep.Task(net, nn.CrossEntropyLoss(), metrics={"wrong": metric}, **data), config
    )
    session.evaluate()
    plain = [float((net(x).argmax(1) != y).double().mean()) for x, y in in_batches(7, X, Y)]
    assert_same(plain, metric.worst)


class Frozen(OrderedDict[str, int]):
    """A dict that forbids changes, as some configs do."""

    def __setitem__(self, key: str, value: int) -> None:
        if getattr(self, "is_frozen", False):
            raise TypeError("frozen")
        super().__setitem__(key, value)

    def freeze(self) -> "Frozen":
        self.is_frozen = True
        return self

    def clear(self) -> None:
        raise TypeError("frozen")

    update = pop = __delitem__ = clear  # type: ignore[assignment]


class Meta(type):
    """The class of a class that a model keeps."""


class Head(metaclass=Meta):
    """Is kept, not made."""


def test_what_is_not_changed_is_not_written(tmp_path: Path) -> None:
    ours = Noting([], lambda kept, x: None, lazy=False)
    ours.config = Frozen(size=3, depth=1).freeze()
    ours.head_class = Head
    base = torch.zeros(1)
    ours.base, ours.wide = base, base.expand(4)
    ours.note = lambda kept, x: ours.base.add_(1)
    stored = np.memmap(tmp_path / "stored", np.float32, "w+", shape=(5,))
    other = np.memmap(tmp_path / "stored", np.float32, "r+", shape=(5,))
    ours.stored = stored
    numbers = ours.numbers = list(range(100_000))
    other[2] = 7
    train(surestep.Task(ours, nn.CrossEntropyLoss(), train=(X, Y)), plain_config(max_steps=3))
    assert [*ours.config.items()] == [("size", 3), ("depth", 1)]
    assert ours.numbers is numbers
    assert len(numbers) == 100_000
    assert float(ours.wide[3]) == float(base) == 3
    assert stored[2] == 7
