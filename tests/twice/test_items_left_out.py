"""Samples that are left out after they were read: a batch is a mean over those that remain."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

import surestep
from tests.twice.compare import assert_same, plain_config, train, weights

N, SIZE = 47, 7
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.cat([X, X[:, :1] * X[:, 1:2]], 1) + 1  # as many columns as a micro-batch has rows
IS_GOOD = torch.tensor([row % SIZE not in (1, 2) for row in range(N)])  # 2 of the first 4 are left
Loss = Callable[[Tensor, Tensor], Tensor]


def network() -> nn.Linear:
    """Return a layer with the same weights at each call."""
    torch.manual_seed(0)
    return nn.Linear(3, 4).double()


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over samples of a loss by hand."""
    return ((outputs - targets) ** 2).sum(1).mean()


def remaining() -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is left of the batches of two epochs."""
    for _ in range(2):
        for first in range(0, N, SIZE):
            good = IS_GOOD[first : first + SIZE]
            yield X[first : first + SIZE][good], Y[first : first + SIZE][good]


def by_hand() -> dict[str, Tensor]:
    """Return the weights after a loop over the samples that are left."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in remaining():
        optimizer.zero_grad()
        squared(net(x), y).backward()
        optimizer.step()
    return weights(net)


class WithBad(Dataset[Any]):
    """Samples of which some cannot be read."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor] | None:
        return (X[index], Y[index]) if IS_GOOD[index] else None


def collate_good(samples: list[Any]) -> Any:
    """Leave out what could not be read."""
    return default_collate([sample for sample in samples if sample is not None])


def choose_good(batch: Any) -> tuple[Tensor, Tensor]:
    """Choose rows of a batch that was read in full."""
    x, y, good = batch
    return x[good], y[good]


def manual(step: surestep.ManualStep) -> None:
    """Take the mean over what is left of each micro-batch."""
    for micro in step.micro_batches():
        x, y = micro.args
        step.backward(squared(step.model(x), y), micro)
    step.step("model")


class WithLoss(nn.Module):
    """A model that computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor, y: Tensor) -> Any:
        """Return the loss and the outputs."""
        outputs = self.net(x)
        return {"loss": squared(outputs, y), "logits": outputs}


def batches(first: int, last: int) -> list[list[int]]:
    """Return the indices of the batches of a part of the data."""
    return [list(range(at, min(at + SIZE, last))) for at in range(first, last, SIZE)]


class Augmented(surestep.BatchedDataset):
    """Changes what it has collated."""

    def __getitem__(self, number: int) -> Any:
        return super().__getitem__(number)


READY: dict[str, Callable[[list[list[int]]], Any]] = {
    "loader": lambda part: (
        lambda: DataLoader(WithBad(), batch_sampler=part, collate_fn=collate_good)
    ),
    "batched": lambda part: surestep.BatchedDataset(WithBad(), part, collate_fn=collate_good),
    "subset": lambda part: Subset(READY["batched"](part), range(len(part))),
    "class": lambda part: Augmented(WithBad(), part, collate_fn=collate_good),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", READY)
def test_samples_left_out_of_ready_batches_do_not_count(kind: str, workers: int) -> None:
    net, expected = network(), network()
    parts = batches(0, 42)
    task = surestep.Task(
        net,
        squared,
        train=READY[kind](parts),
        val=READY[kind]([*batches(0, 14), [14, 15, 16]]),
        batched=True,
        metrics={"off": lambda outputs, targets: (outputs - targets).abs().mean()},
    )
    options = {"shuffle": False, "num_workers": workers}
    config = plain_config(max_steps=1, batch_size=len(parts), optim={"lr": 0.1}, data=options)
    found = train(task, config).evaluate()
    x, y = X[:42][IS_GOOD[:42]], Y[:42][IS_GOOD[:42]]
    squared(expected(x), y).backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= 0.1 * parameter.grad
        off = net(X[:17][IS_GOOD[:17]]) - Y[:17][IS_GOOD[:17]]
    assert_same(weights(expected), weights(net))
    plain = [float((off**2).sum(1).mean()), float(off.abs().mean())]
    assert_same(plain, [found["val/loss"], found["val/off"]])


@pytest.mark.parametrize("micro_batch_size", [SIZE, 4])
@pytest.mark.parametrize("kind", ["collated", "chosen", "manual", "of the model"])
def test_samples_that_are_left_out_do_not_count(kind: str, micro_batch_size: int) -> None:
    read: dict[str, Any] = {"train": WithBad(), "collate_fn": collate_good}
    chosen = {"train": (X, Y, IS_GOOD), "inputs": choose_good}
    own = {"train": WithBad(), "collate_fn": lambda some: named(collate_good(some))}
    model = WithLoss() if kind == "of the model" else network()
    task = {
        "collated": lambda: surestep.Task(model, squared, **read),
        "chosen": lambda: surestep.Task(model, squared, **chosen),
        "manual": lambda: surestep.Task(model, step=manual, **read),
        "of the model": lambda: surestep.Task(model, "model", items="samples", **own),
    }[kind]()
    train(task, plain_config(epochs=2, batch_size=SIZE, micro_batch_size=micro_batch_size))
    assert_same(by_hand(), weights(model.net if isinstance(model, WithLoss) else model))


def named(batch: Any) -> dict[str, Tensor]:
    """Return the arguments of the model by name."""
    return {"x": batch[0], "y": batch[1]}


def test_validation_is_a_mean_over_the_samples_that_are_left() -> None:
    net = network()
    task = surestep.Task(
        net,
        squared,
        train=WithBad(),
        val=WithBad(),
        collate_fn=collate_good,
        metrics={"off": lambda outputs, targets: (outputs - targets).abs().mean()},
    )
    config = plain_config(max_steps=5, batch_size=SIZE, validation={"batch_size": 11})
    found = train(task, config).evaluate()
    with torch.no_grad():
        off = net(X[IS_GOOD]) - Y[IS_GOOD]
    plain = [float((off**2).sum(1).mean()), float(off.abs().mean())]
    assert_same(plain, [found["val/loss"], found["val/off"]])
