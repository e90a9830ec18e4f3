"""Data that a program changes while data workers hold a copy of it, and data by epoch."""

from datetime import date
from decimal import Decimal
from fractions import Fraction
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import surestep
from surestep.engine.data.worker_copies import find_change, list_contents
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

N = 28
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2]).clone()
SCALE = [1.0]
WORKERS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": False}]


def config(**options: Any) -> surestep.Config:
    """Return a Config with batches of 7; the check of the data would start other workers."""
    return plain_config(batch_size=7, doctor={"check_data": "off"}, **options)


def linear() -> nn.Linear:
    """Return a layer with the same weights at each call."""
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


def by_hand(scales: list[float]) -> dict[str, Tensor]:
    """Return the weights after a plain loop, whose inputs are scaled by another factor each epoch.

    A DataLoader of torch without workers that persist reads the dataset as it is at each epoch.
    """
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for scale in scales:
        for x, y in in_batches(7, scale * X, Y):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
    return weights(net)


class Scaled(Dataset[Any]):
    """Samples that depend on an attribute; `scale` reads it."""

    def __init__(self) -> None:
        self.value = 1.0
        self.values = [1.0]
        self.by_name = {"scale": {"of": 1.0}}
        self.array = np.ones(3)
        self.tensor = torch.ones(3)
        self.transform = Scale(1.0)
        self.function = lambda: 1.0
        self.folder = Path("scaled/1")
        self.bytes = bytearray([10])

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.scale() * X[index], Y[index]

    def scale(self) -> float:
        """Return the factor of the inputs."""
        factors = (self.value, self.values[0], self.by_name["scale"]["of"], self.transform.factor)
        also = float(self.array[1]) * float(self.tensor[1]) * self.function() * SCALE[0]
        return float(np.prod(factors)) * also * float(self.folder.name) * self.bytes[0] / 10


class Scale:
    """Something that a dataset holds."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


def set_item(items: Any, key: Any, value: float) -> None:
    """Change an element in place."""
    items[key] = value


CHANGES: dict[str, Any] = {
    "attribute": lambda data, value: setattr(data, "value", value),
    "element of a list": lambda data, value: set_item(data.values, 0, value),
    "other list": lambda data, value: setattr(data, "values", [value]),
    "element of a dict": lambda data, value: set_item(data.by_name["scale"], "of", value),
    "element of an array": lambda data, value: set_item(data.array, 1, value),
    "element of a tensor": lambda data, value: set_item(data.tensor, 1, value),
    "element by .data": lambda data, value: data.tensor.data.fill_(value),
    "attribute of a transform": lambda data, value: setattr(data.transform, "factor", value),
    "other transform": lambda data, value: setattr(data, "transform", Scale(value)),
    "other function": lambda data, value: setattr(data, "function", lambda: value),
    "path": lambda data, value: setattr(data, "folder", Path(f"scaled/{value}")),
    "byte": lambda data, value: set_item(data.bytes, 0, round(10 * value)),
    "global": lambda data, value: set_item(SCALE, 0, value),
}


@pytest.fixture(autouse=True)
def restore_scale() -> Any:
    """Restore the global that a dataset reads."""
    yield
    SCALE[0] = 1.0


def train_changed(
    data: Any, change: Any, options: Any, *, epochs: int = 3, after: int = 4, **parts: Any
) -> nn.Linear:
    """Train some epochs, and change the data in each after some steps of four.

    At the end of the epochs, it changes to 2, then to 3.
    """
    net = linear()
    session = prepare(
        surestep.Task(net, nn.MSELoss(), train=data, **parts),
        config(max_steps=4 * epochs, data=options),
    )
    for result in session.steps():
        if result.step % 4 == after % 4:
            change(data, 1 + result.step / 4)
    return net


@pytest.mark.filterwarnings("ignore:.*workers had a copy")
@pytest.mark.parametrize("options", WORKERS, ids=["0", "2", "2 in each epoch"])
def test_change_between_two_epochs_reaches_every_worker(options: Any) -> None:
    """Each epoch ends with another change; if workers miss it, the weights of the next differ."""
    net, data = linear(), Scaled()
    task = surestep.Task(net, nn.MSELoss(), train=data)
    steps = 4 * (len(CHANGES) + 1)
    session = prepare(task, config(max_steps=steps, data=options))
    scales, names, after = [1.0], list(CHANGES), "no change"
    for result in session.steps():
        if result.step % 4 == 0:
            assert_same(by_hand(scales), weights(net), where=after)
            after = names.pop(0) if names else ""
            if after:
                CHANGES[after](data, 1.2 if len(scales) % 2 else 0.8)
                scales.append(data.scale())
                assert scales[-1] != scales[-2]
    assert len(scales) == len(CHANGES) + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda number: Path(f"data/{number}"),
        lambda number: date(2020, 1, number),
        Decimal,
        Fraction,
        lambda number: UUID(int=number),
        lambda number: torch.device("cuda", number),
        lambda number: torch.Size([number]),
        lambda number: bytearray([number]),
        lambda number: {"a": Path(f"data/{number}")},
        lambda number: SimpleNamespace(a=[Path(f"data/{number}")]),
    ],
)
def test_replacement_of_any_object_is_a_change_unless_it_is_equal(make: Any) -> None:
    data = SimpleNamespace(a=None)

    def contents(number: int) -> Any:
        data.a = make(number)
        return list_contents(("dataset", data))

    before = contents(1)
    assert find_change(before, contents(2)).startswith("dataset.a")
    before = contents(1)
    assert find_change(before, list_contents(("dataset", data))) == ""
    if isinstance(data.a, (Path, Decimal, torch.device)):
        assert find_change(before, contents(1)) == ""


class Stream(IterableDataset[Any]):
    """The same samples, read in order."""

    def __init__(self) -> None:
        self.value = 1.0

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        if info is None or info.id == 0:  # surestep compares the shards of several workers
            for x, y in zip(X, Y, strict=True):
                yield self.value * x, y


@pytest.mark.filterwarnings("ignore:.*workers had a copy")
def test_change_of_a_stream_between_two_epochs_reaches_its_worker() -> None:
    options = {"num_workers": 1}
    net = train_changed(Stream(), CHANGES["attribute"], options)
    assert_same(by_hand([1.0, 2.0, 3.0]), weights(net))


class Collate:
    """A collate function with an option."""

    value = 1.0

    def __call__(self, samples: list[Any]) -> Any:
        x, y = torch.utils.data.default_collate(samples)
        return self.value * x, y


@pytest.mark.filterwarnings("ignore:.*workers had a copy")
@pytest.mark.parametrize("options", WORKERS, ids=["0", "2", "2 in each epoch"])
def test_change_of_a_collate_function_reaches_every_worker(options: Any) -> None:
    collate = Collate()

    def change(data: Any, value: float) -> None:
        collate.value = value

    net = train_changed(Scaled(), change, options, collate_fn=collate)
    assert_same(by_hand([1.0, 2.0, 3.0]), weights(net))


@pytest.mark.parametrize("options", WORKERS, ids=["0", "2", "2 in each epoch"])
def test_tensors_in_memory_that_are_written_to_reach_every_worker(options: Any) -> None:
    data = TensorDataset(X.clone(), Y)

    def change(data: Any, value: float) -> None:
        data.tensors[0].copy_(value * X)

    assert_same(by_hand([1.0, 2.0, 3.0]), weights(train_changed(data, change, options)))


@pytest.mark.parametrize("options", WORKERS, ids=["0", "2", "2 in each epoch"])
def test_change_of_validation_data_reaches_every_worker(options: Any) -> None:
    net, data = linear(), Scaled()
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y), val=data)
    session = prepare(task, config(max_steps=3, data=options))
    for result in session.steps():
        data.value = float(result.step)
        with torch.no_grad():
            plain = float(nn.functional.mse_loss(net(data.value * X), Y))
        assert_same(plain, session.evaluate()["val/loss"])


def test_workers_stay_if_nothing_was_changed() -> None:
    data = Scaled()
    task = surestep.Task(linear(), nn.MSELoss(), train=data)
    options = {"num_workers": 1}
    session = prepare(task, config(max_steps=12, data=options))
    pids = {tuple(child.pid for child in active_children()) for _ in session.steps()}
    assert len(pids) == 1


class ByEpoch(Scaled):
    """Samples that depend on the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Set the factor."""
        self.value = 1.0 + epoch


def test_workers_stay_if_the_data_depends_on_the_epoch() -> None:
    """An evaluation of the same dataset in this process sets the first epoch here."""
    net, data = linear(), ByEpoch()
    val = DataLoader(data, 7, num_workers=0)
    task = surestep.Task(net, nn.MSELoss(), train=data, val=val)
    options = {"num_workers": 1}
    session = prepare(task, config(max_steps=12, data=options))
    pids = set()
    for _ in session.steps():
        with torch.no_grad():
            plain = float(nn.functional.mse_loss(net(X), Y))
        assert_same(plain, session.evaluate()["val/loss"])
        pids.add(tuple(child.pid for child in active_children()))
    assert len(pids) == 1
    assert_same(by_hand([1.0, 2.0, 3.0]), weights(net))


def test_change_within_an_epoch_is_reported_with_the_epoch_from_which_it_counts() -> None:
    found = []

    def change(data: Any, value: float) -> None:
        data.value = value

    def train_late() -> None:
        found.append(train_changed(Scaled(), change, {"num_workers": 1}, after=2))

    message = (
        r"changed dataset\.value while .* train data.*with it from epoch 2 on; without workers "
        r"it counts from the next sample on\. .* A resumed run .* set_epoch\(epoch\)"
    )
    with pytest.warns(UserWarning, match=message):
        train_late()
    assert_same(by_hand([1.0, 1.5, 2.5]), weights(found[0]))


class ByAttribute(Dataset[Any]):
    """Samples that can be sent to a worker that is started by spawn."""

    factor = 1.0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.factor * X[index], Y[index]


def test_change_reaches_a_worker_that_is_started_by_spawn() -> None:
    loader = DataLoader(
        ByAttribute(), 7, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    )

    def change(data: Any, value: float) -> None:
        data.dataset.factor = value

    with pytest.warns(UserWarning, match=r"started by 'spawn' and import their modules again"):
        net = train_changed(loader, change, {}, epochs=2)
    assert_same(by_hand([1.0, 2.0]), weights(net))
