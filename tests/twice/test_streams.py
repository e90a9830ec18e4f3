"""Streams: every sample counts once, in the order of the stream, as in a loop by hand."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset, get_worker_info

import surestep
from tests.twice.compare import (
    assert_same,
    in_batches,
    plain_config,
    prepare,
    seed_all,
    seed_of,
    weights,
)

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(53, 4, generator=GENERATOR, dtype=torch.float64)
Z = torch.randn(53, 2, generator=GENERATOR, dtype=torch.float64)


def net() -> nn.Module:
    """Return a small model."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def by_hand(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Take a step on each batch; return the losses."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for x, z in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), z)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def config(**options: Any) -> surestep.Config:
    """Return the options of these runs."""
    return plain_config(**{"batch_size": 7, "optim": {"momentum": 0.9}} | options)


class Rows(IterableDataset[Any]):
    """Rows of the data, in stored order."""

    def __init__(self, count: int = 53, *, step: int = 1) -> None:
        self.rows = range(0, count, step)

    def __iter__(self) -> Iterator[Any]:
        for row in self.rows:
            yield X[row], Z[row]


LENGTHS = (15, 8, 22, 1, 13)


def lengthening(epoch: int) -> Iterator[Any]:
    """Yield another number of samples in each epoch, from another place."""
    for row in range(LENGTHS[epoch]):
        index = (row + 10 * epoch) % 53
        yield X[index], Z[index]


def epochs_of(count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return the first batches of `lengthening`."""
    batches = []
    for epoch, length in enumerate(LENGTHS):
        rows = [(row + 10 * epoch) % 53 for row in range(length)]
        batches += list(in_batches(size, X[rows], Z[rows]))
    return batches[:count]


def test_epochs_of_different_lengths_equal_a_loop_by_hand() -> None:
    plain_net, ours_net = net(), net()
    plain = by_hand(plain_net, epochs_of(11, 7))

    task = surestep.Task(ours_net, nn.MSELoss(), train=lengthening)
    session = prepare(task, config(max_steps=11, micro_batch_size=3))
    found = list(session.steps())

    assert_same(plain, [float(result.loss) for result in found])
    assert [result.epoch for result in found] == [0] * 3 + [1] * 2 + [2] * 4 + [3] + [4]
    assert_same(weights(plain_net), weights(ours_net))


def test_resume_in_epochs_of_different_lengths_equals_a_loop_by_hand() -> None:
    plain_net = net()
    plain = by_hand(plain_net, epochs_of(11, 7))

    ours = []
    for stop in (1, 3, 4, 7, 10, 100):
        ours_net = net()
        task = surestep.Task(ours_net, nn.MSELoss(), train=lengthening)
        with surestep.prepare(task, config(max_steps=11), run="run") as session:
            for result in session.steps():
                ours.append(float(result.loss))
                if result.step == stop:
                    session.save()
                    break

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


def test_dropped_last_batches_end_epochs_of_different_lengths() -> None:
    def longer(epoch: int) -> Iterator[Any]:
        for row in range((15, 8, 14, 22)[epoch]):
            yield X[row + epoch], Z[row + epoch]

    batches = []
    for epoch, length in enumerate((15, 8, 14, 22)):
        stop = epoch + length - length % 7
        batches += list(in_batches(7, X[epoch:stop], Z[epoch:stop]))
    plain_net, ours_net = net(), net()
    plain = by_hand(plain_net, batches)

    task = surestep.Task(ours_net, nn.MSELoss(), train=longer)
    session = prepare(task, config(max_steps=8, data={"drop_last": True}))
    ours = [float(result.loss) for result in session.steps()]

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


def test_evaluation_is_due_at_the_end_of_a_pass_of_any_length() -> None:
    plain_net, ours_net = net(), net()
    losses = []
    batches = epochs_of(11, 7)
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1, momentum=0.9)
    for number, (x, z) in enumerate(batches):
        optimizer.zero_grad()
        F.mse_loss(plain_net(x), z).backward()
        optimizer.step()
        if number + 1 in (3, 5, 9, 10, 11):
            with torch.no_grad():
                losses.append(F.mse_loss(plain_net(X[:29]), Z[:29]).item())

    task = surestep.Task(ours_net, nn.MSELoss(), train=lengthening, val=Rows(29))
    run = surestep.Trainer(task, config(max_steps=11, validation={"batch_size": 4})).fit()
    ours = [e["metrics"]["val/loss"] for e in run.events() if e["event"] == "evaluation"]

    assert_same(losses, ours)


class Augmented(IterableDataset[Any]):
    """Rows with noise of every generator, drawn before and between the samples."""

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(23).tolist()
        for row in order:
            shift = torch.randn(4).double() + random.random() + np.random.rand()
            yield {"input": X[row] + 0.1 * shift, "target": Z[row]}


def augmented(epoch: int) -> tuple[Tensor, Tensor]:
    """Return the samples of an epoch as the documentation describes their seeds."""
    samples: list[Any] = []
    stream: Any = None
    seed_all("stream", 0, epoch, 0, "train")
    stream = iter(Augmented())
    for position in range(23):
        seed_all("load", 0, epoch, position, "train")
        samples.append(next(stream))
    return (
        torch.stack([sample["input"] for sample in samples]),
        torch.stack([sample["target"] for sample in samples]),
    )


def test_resumed_stream_with_random_numbers_equals_a_loop_by_hand() -> None:
    plain_net = net()
    batches = [batch for epoch in range(3) for batch in in_batches(7, *augmented(epoch))]
    plain = by_hand(plain_net, batches)

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, input: Tensor) -> Tensor:
            return self.net(input)

    for workers in (0, 1):
        ours = []
        for stop in (2, 4, 6, 100):
            ours_net = Named()
            task = surestep.Task(ours_net, nn.MSELoss(), train=Augmented(), val=Augmented())
            options = config(max_steps=12, data={"num_workers": workers})
            with surestep.prepare(task, options, run=f"run{workers}") as session:
                for result in session.steps():
                    ours.append(float(result.loss))
                    random.random()
                    np.random.rand()
                    torch.rand(2)
                    if result.step in (1, 4):
                        session.evaluate()
                    if result.step == stop:
                        session.save()
                        break

        assert_same(plain, ours)
        assert_same(weights(plain_net), weights(ours_net.net))


def test_shuffle_buffer_yields_every_sample_once_and_resumes() -> None:
    def shuffled(epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed_of("buffer", 0, epoch, 0))
        buffer, order = list(range(10)), []
        for row in range(10, 53):
            chosen = int(torch.randint(10, (), generator=generator))
            order.append(buffer[chosen])
            buffer[chosen] = row
        return order + [buffer[i] for i in torch.randperm(10, generator=generator).tolist()]

    plain_net = net()
    orders = [shuffled(epoch) for epoch in range(2)]
    assert all(sorted(order) == list(range(53)) for order in orders)
    plain = by_hand(
        plain_net, [batch for order in orders for batch in in_batches(7, X[order], Z[order])]
    )

    ours = []
    for stop in (5, 11, 100):
        ours_net = net()
        task = surestep.Task(ours_net, nn.MSELoss(), train=Rows())
        options = config(max_steps=16, data={"shuffle_buffer": 10, "shuffle": surestep.NOT_SET})
        with surestep.prepare(task, options, run="run") as session:
            for result in session.steps():
                ours.append(float(result.loss))
                if result.step == stop:
                    session.save()
                    break

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


class Rotated(IterableDataset[Any]):
    """Rows whose inputs depend on the epoch, which is read at each sample."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for row in range(23):
            yield X[row].roll(self.epoch), Z[row]


def test_evaluation_on_the_training_stream_leaves_its_epoch() -> None:
    plain_net, ours_net = net(), net()
    plain = by_hand(
        plain_net,
        [b for epoch in range(3) for b in in_batches(7, X[:23].roll(epoch, 1), Z[:23])],
    )

    data = Rotated()
    task = surestep.Task(ours_net, nn.MSELoss(), train=data, val={"first": data, "few": Rows(5)})
    session = prepare(task, config(max_steps=12))
    ours = []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step in (2, 6, 9):
            session.evaluate()
            session.evaluate("train")
            session.predict("train")

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


class Sharded(IterableDataset[Any]):
    """Shards of different lengths: worker 0 reads 31 rows, worker 1 reads 22."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for row in range(31) if worker == 0 else range(31, 53):
            yield X[row], Z[row]


def test_two_workers_with_shards_of_different_lengths_read_every_sample_once() -> None:
    first = list(in_batches(7, X[:31], Z[:31]))
    second = list(in_batches(7, X[31:], Z[31:]))
    epoch = []
    for number in range(4):
        epoch += [first[number]] + ([second[number]] if number < 3 else [])
    rest = torch.cat([X[28:31], X[52:]]), torch.cat([Z[28:31], Z[52:]])
    epoch += [rest]
    plain_net = net()
    plain = by_hand(plain_net, epoch * 2)

    ours = []
    for stop in (7, 12, 100):
        ours_net = net()
        task = surestep.Task(ours_net, nn.MSELoss(), train=Sharded())
        options = config(max_steps=16, data={"num_workers": 2})
        with surestep.prepare(task, options, run="run") as session:
            for result in session.steps():
                ours.append(float(result.loss))
                if result.step == stop:
                    session.save()
                    break

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


def rows_of(scale: float, epoch: int = 0) -> Iterator[Any]:
    """Yield rows times a scale, and times two to the power of the epoch."""
    for x, z in zip(X, Z, strict=True):
        yield 0.5**epoch * scale * x, z


@pytest.mark.parametrize("kind", ["default", "default and epoch", "epoch", "required"])
def test_function_gets_the_epoch_and_keeps_what_it_holds(kind: str) -> None:
    """A lambda holds values by its defaults, as in a loop over files."""
    functions = {
        "default": lambda scale=2.0: rows_of(scale),
        "default and epoch": lambda scale=2.0, epoch=0: rows_of(scale, epoch),
        "epoch": lambda epoch=5: rows_of(2.0, epoch),
        "required": lambda number: rows_of(2.0, number),
    }
    plain_net, ours_net = net(), net()
    shares = [1.0, 1.0 if kind == "default" else 0.5]
    plain = by_hand(
        plain_net, [batch for share in shares for batch in in_batches(7, 2 * share * X, Z)]
    )
    task = surestep.Task(ours_net, nn.MSELoss(), train=functions[kind])
    session = prepare(task, config(max_steps=16))
    ours = [float(result.loss) for result in session.steps()]

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))
