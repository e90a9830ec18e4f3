"""Means over samples of batches whose first target has something else in its rows."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils.data import DataLoader

import surestep
from tests.twice.compare import assert_same, plain_config, prepare, weights

G = torch.Generator().manual_seed(4)
ROWS = [
    (
        torch.randn(1 + row % 4, 6, generator=G, dtype=torch.float64),
        torch.randint(5, (1 + row % 3,), generator=G),
    )
    for row in range(30)
]
TRAIN, VAL = ROWS[:18], ROWS[18:]
UNEVEN = [[0, 1, 2, 3, 4], [5, 6], [7, 8, 9, 10], [11], [12, 13, 14], [15, 16, 17]]
OF_VAL = [[0, 1, 2, 3, 4, 5, 6], [7, 8], [9, 10, 11]]


class Net(nn.Module):
    """Reads sequences, joined in one row with their lengths, or packed; time comes first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells, self.head = nn.GRU(6, 7), nn.Linear(7, 5)
        self.double()

    def forward(self, x: Any, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of each sequence, and how many labels each has."""
        last = self.cells(x)[1][0]
        return self.head(last), lengths


def packed(samples: list[tuple[Tensor, Tensor]]) -> Any:
    """Pack sequences, and join their labels."""
    x, labels = zip(*samples, strict=True)
    lengths = torch.tensor(list(map(len, labels)))
    return rnn.pack_sequence(list(x), enforce_sorted=False), lengths, torch.cat(labels)


def padded(samples: list[tuple[Tensor, Tensor]]) -> Any:
    """Pad sequences at their start with time first, and join their labels."""
    x, labels = zip(*samples, strict=True)
    lengths = torch.tensor(list(map(len, labels)))
    steps = [F.pad(sequence, (0, 0, 4 - len(sequence), 0)) for sequence in x]
    return torch.stack(steps, 1), lengths, torch.cat(labels)


def per_sample(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """Return the mean over samples of the sum over the labels of each."""
    scores, lengths = outputs
    total = F.cross_entropy(scores.repeat_interleave(lengths, 0), labels, reduction="sum")
    return total / len(lengths)


def off(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """Return the mean over samples of how many labels are not the most likely one."""
    scores, lengths = outputs
    wrong = scores.argmax(1).repeat_interleave(lengths) != labels
    return wrong.sum().double() / len(lengths)


def by_hand(collate: Any, steps: list[list[int]]) -> tuple[list[float], list[float], Any]:
    """Return the losses, the evaluation and the weights of a loop by hand."""
    net, losses = Net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in steps:
        *inputs, labels = collate([TRAIN[row] for row in step])
        optimizer.zero_grad()
        loss = per_sample(net(*inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    *inputs, labels = collate(VAL)
    with torch.no_grad():
        outputs = net(*inputs)
        measured = [per_sample(outputs, labels).item(), off(outputs, labels).item()]
    return losses, measured, weights(net)


def by_surestep(train: Any, val: Any, options: dict[str, Any], **parts: Any) -> Any:
    """Return the same of surestep."""
    net = Net()
    task = surestep.Task(net, per_sample, train=train, val=val, metrics={"off": off}, **parts)
    session = prepare(task, plain_config(**{"max_steps": 3, "optim": {"lr": 0.1}} | options))
    losses = [float(result.loss) for result in session.steps()]
    found = session.evaluate() if val is not None else {}
    return losses, [found.get("val/loss"), found.get("val/off")], weights(net)


COLLATES = {"packed": packed, "padded": padded}


def stream_of(rows: Any) -> Callable[[], Iterator[Any]]:
    """Return a stream of rows."""
    return lambda: iter(list(rows))


@pytest.mark.parametrize("size", [6, 4, 1])
@pytest.mark.parametrize("kind", ["dataset", "stream", "loader"])
@pytest.mark.parametrize("collate", COLLATES.values(), ids=COLLATES)
def test_samples_are_counted_where_they_are_collated(collate: Any, kind: str, size: int) -> None:
    plain = by_hand(collate, [list(range(first, first + 6)) for first in (0, 6, 12)])
    options: dict[str, Any] = {"micro_batch_size": size, "validation": {"batch_size": size}}
    data: list[Any] = [TRAIN, VAL]
    parts: dict[str, Any] = {"collate_fn": collate}
    if kind == "loader":
        data = [
            DataLoader(rows, size, collate_fn=collate)
            for rows, size in zip(data, (6, size), strict=True)
        ]
        parts, options = {}, {"micro_batch_size": size}
    elif kind == "stream":
        data, options["batch_size"] = list(map(stream_of, data)), 6
    else:
        options["batch_size"] = 6
    assert_same(list(plain), list(by_surestep(*data, options, **parts)))


@pytest.mark.parametrize("kind", ["loader", "dataset", "declared"])
@pytest.mark.parametrize("collate", COLLATES.values(), ids=COLLATES)
def test_samples_of_ready_batches_are_those_of_their_sampler(collate: Any, kind: str) -> None:
    plain = by_hand(collate, [[*UNEVEN[i], *UNEVEN[i + 1]] for i in (0, 2, 4)])
    if kind == "loader":

        def load(rows: Any, batches: Any) -> Any:
            return lambda: DataLoader(rows, batch_sampler=batches, collate_fn=collate)
    elif kind == "dataset":

        def load(rows: Any, batches: Any) -> Any:
            return surestep.BatchedDataset(rows, batches, collate_fn=collate)
    else:

        def load(rows: Any, batches: Any) -> Any:
            return [collate([rows[i] for i in batch]) for batch in batches]

    parts = {"items": lambda batch: len(batch[1])} if kind == "declared" else {}
    data = load(TRAIN, UNEVEN), load(VAL, OF_VAL)
    losses, measured, trained = by_surestep(*data, {"batch_size": 2}, batched=True, **parts)
    measured[1:] = plain[1][1:] if kind == "declared" else measured[1:]  # it declares the loss
    assert_same(list(plain), [losses, measured, trained])


def test_ready_batches_of_unknown_size_need_the_function_that_counts_them() -> None:
    data = [padded([TRAIN[row] for row in batch]) for batch in UNEVEN]
    with pytest.raises(
        surestep.SurestepError, match=r"Task\(items=lambda batch: len\(batch\[0\]\)"
    ):
        by_surestep(data, None, {}, batched=True)


class Regrouped(surestep.BatchedDataset):
    """Has other batches in each epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Group the samples."""
        sizes = [5, 2, 4, 1, 3, 3]
        sizes = sizes[epoch:] + sizes[:epoch]
        ends = [sum(sizes[: end + 1]) for end in range(len(sizes))]
        self.batches = [list(range(end - n, end)) for end, n in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_batches_that_are_grouped_again_are_counted(workers: int) -> None:
    first = [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]]
    second = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17]]
    plain = by_hand(padded, [*first, *second])
    data = Regrouped(TRAIN, UNEVEN, collate_fn=padded), None
    options = {"batch_size": 2, "max_steps": 6, "data": {"shuffle": False, "num_workers": workers}}
    losses, _, trained = by_surestep(*data, options, batched=True)
    assert_same([plain[0], plain[2]], [losses, trained])
