"""Means over samples of batches whose first target has something else in its rows."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils.data import DataLoader, Dataset

import surestep
from surestep.engine.losses.base import LossDoc, LossModule
from tests.twice.compare import assert_same, plain_config, prepare, weights
from tests.twice.compare import train as fit

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
    net, loss = Net(), parts.pop("loss", per_sample)
    task = surestep.Task(net, loss, train=train, val=val, metrics={"off": off}, **parts)
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


class PerSample(LossModule):
    """The same mean as a loss of a class."""

    name = "per_sample"
    doc = LossDoc("labels", "scores", "labels", "the sum of -log p", "samples", "")

    def total(self, outputs: Any, targets: Any) -> Tensor:
        """Return the sum over samples."""
        scores, lengths = outputs
        return F.cross_entropy(scores.repeat_interleave(lengths, 0), targets, reduction="sum")


@pytest.mark.parametrize("size", [6, 4])
def test_samples_of_a_loss_of_a_class_are_those_that_were_collated(size: int) -> None:
    plain = by_hand(packed, [list(range(first, first + 6)) for first in (0, 6, 12)])
    options = {"batch_size": 6, "micro_batch_size": size, "validation": {"batch_size": size}}
    found = by_surestep(TRAIN, VAL, options, loss=PerSample(), collate_fn=packed)
    assert_same(list(plain), list(found))


class Unread(Dataset[Any]):
    """Rows of which some cannot be read."""

    def __init__(self, rows: Any, unread: list[int]) -> None:
        self.rows, self.unread = rows, unread

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return None if row in self.unread else self.rows[row]


@pytest.mark.parametrize("size", [6, 4])
@pytest.mark.parametrize("kind", ["dataset", "stream", "batches"])
def test_joined_samples_that_could_not_be_read_do_not_count(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [[0, 1, 2, 3, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 17]]
    train, val = Unread(TRAIN, [4, 15, 16]), Unread(VAL, [4, 5, 6])
    parts: dict[str, Any] = {"collate_fn": read_only}
    options: dict[str, Any] = {"batch_size": 6, "micro_batch_size": size}
    options |= {"validation": {"batch_size": size}, "data": {"shuffle": False}}
    data: list[Any] = [train, val]
    if kind == "stream":
        data = [(lambda rows=rows: (rows[i] for i in range(len(rows)))) for rows in data]
        options["data"] = {}
    elif kind == "batches":
        parts, options = {"batched": True}, {"batch_size": 6 // 3, "data": {"shuffle": False}}
        data = [
            surestep.BatchedDataset(
                rows,
                [range(at, min(at + 3, len(rows))) for at in range(0, len(rows), 3)],
                collate_fn=read_only,
            )
            for rows in data
        ]
    monkeypatch.setitem(globals(), "VAL", [VAL[row] for row in range(12) if row not in (4, 5, 6)])
    assert_same(list(by_hand(packed, steps)), list(by_surestep(*data, options, **parts)))


def read_only(samples: list[Any]) -> Any:
    """Collate those that could be read."""
    return packed([sample for sample in samples if sample is not None])


def points(samples: list[tuple[Tensor, Tensor]]) -> Any:
    """Join points, of which a sample may have none."""
    x, labels = zip(*samples, strict=True)
    return torch.cat(x), len(samples), torch.cat(labels)


def joined(outputs: tuple[Tensor, int], labels: Tensor) -> Tensor:
    """Return the mean over samples of the sum over the points of each."""
    scores, samples = outputs
    return F.cross_entropy(scores, labels, reduction="sum") / samples


class Points(nn.Module):
    """A layer that passes the number of samples on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 5).double()

    def forward(self, x: Tensor, samples: int) -> tuple[Tensor, int]:
        """Return the scores of each point."""
        return self.layer(x), samples


@pytest.mark.parametrize("size", [16, 4])
def test_samples_without_points_count(size: int) -> None:
    counts = [2, 1, 3, 1, 0, 1, 0, 2, 0, 1, 0, 1, 1, 0, 1, 1]
    rows = [
        (torch.randn(n, 6, generator=G, dtype=torch.float64), torch.randint(5, (n,), generator=G))
        for n in counts
    ]
    net, plain = Points(), Points()
    *inputs, labels = points(rows)
    joined(plain(*inputs), labels).backward()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter -= 0.1 * parameter.grad
    options = {"batch_size": 16, "micro_batch_size": size, "max_steps": 1, "optim": {"lr": 0.1}}
    fit(surestep.Task(net, joined, train=rows, collate_fn=points), plain_config(**options))
    assert_same(weights(plain), weights(net))


TIME_FIRST = [(torch.randn(7, n, 6), torch.randint(5, (7, n))) for n in (4, 4, 1, 3)]


def per_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def test_ready_batches_of_which_time_may_come_first_need_the_function_that_counts_them() -> None:
    def made(**more: Any) -> surestep.Task:
        torch.manual_seed(0)
        return surestep.Task(nn.Linear(6, 5), per_token, train=TIME_FIRST, batched=True, **more)

    options = {"max_steps": 1, "batch_size": 4, "optim": {"lr": 0.1}, "data": {"shuffle": False}}
    with pytest.raises(surestep.SurestepError, match=r"batch\[0\]\.shape\[1\] if time comes first"):
        fit(made(), plain_config(**options))
    task = made(items=lambda batch: batch[0].shape[1])
    plain = made().model
    x, y = (torch.cat(tensors, 1) for tensors in zip(*TIME_FIRST, strict=True))
    per_token(plain(x), y).backward()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter -= 0.1 * parameter.grad
    fit(task, plain_config(**options))
    assert_same(weights(plain), weights(task.model))


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
