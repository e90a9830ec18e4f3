"""Data that a program changes during a run, and code around the data that is not torch's."""

import os
from multiprocessing import active_children
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, train, weights

N = 47
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2]).clone()
Batches = list[tuple[Tensor, Tensor]]


def linear() -> nn.Linear:
    """Return a layer with the same weights at each call."""
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


def by_hand(batches: Batches) -> dict[str, Tensor]:
    """Return the weights after a plain loop."""
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return weights(net)


def two_epochs(x: Tensor, y: Tensor) -> Batches:
    """Return the batches of an epoch as the data was, and of one as it is now."""
    return [*in_batches(7, X, Y), *in_batches(7, x, y)]


def replace_tensors(data: TensorDataset) -> tuple[Tensor, Tensor]:
    """Give other targets, as pseudo-labels are."""
    data.tensors = (X, 2 * Y)
    return data.tensors


def replace_indices(data: Any) -> tuple[Tensor, Tensor]:
    """Choose other samples, as hard ones are mined."""
    data.indices = [index % 30 for index in range(N)]
    return X[data.indices], Y[data.indices]


def reverse_indices(data: Any) -> tuple[Tensor, Tensor]:
    """Change the list of indices itself."""
    data.indices.reverse()
    return X.flip(0), Y.flip(0)


IN_PROCESS: dict[str, Any] = {"num_workers": 0}
BY_WORKERS: dict[str, Any] = {"num_workers": 1}


@pytest.mark.parametrize(
    "options", [IN_PROCESS, BY_WORKERS, BY_WORKERS | {"persistent_workers": False}]
)
@pytest.mark.parametrize("change", [replace_tensors, replace_indices, reverse_indices])
def test_tensors_and_indices_that_are_replaced_are_those_of_the_next_epoch(change, options) -> None:
    data: Any = TensorDataset(X, Y)
    if change is not replace_tensors:
        data = Subset(data, list(range(N)))
    net = linear()
    session = prepare(
        surestep.Task(net, nn.MSELoss(), train=data, val=data),
        plain_config(max_steps=14, batch_size=7, data=options),
    )
    found = []
    for result in session.steps():
        if result.step == 7:
            found.append(session.evaluate()["val/loss"])
            x, y = change(data)
            found.append(session.evaluate()["val/loss"])
            with torch.no_grad():
                plain = [float(nn.functional.mse_loss(net(a), b)) for a, b in ((X, Y), (x, y))]
            assert_same(plain, found)
    assert_same(by_hand(two_epochs(x, y)), weights(net))


def test_workers_stay_if_nothing_in_memory_was_replaced() -> None:
    task = surestep.Task(linear(), nn.MSELoss(), train=(X.numpy(), Y.numpy()))
    session = prepare(task, plain_config(max_steps=14, batch_size=7, data=BY_WORKERS))
    pids = {tuple(child.pid for child in active_children()) for _ in session.steps()}
    assert len(pids) == 1


@pytest.mark.parametrize("options", [IN_PROCESS, BY_WORKERS])
def test_tensors_that_are_replaced_by_another_dataset_are_an_error(options: Any) -> None:
    data: Any = Subset(TensorDataset(X, Y), list(range(20)))
    task = surestep.Task(linear(), nn.MSELoss(), train=data)
    session = prepare(task, plain_config(max_steps=9, batch_size=7, data=options))
    steps = session.steps()
    assert [next(steps).step for _ in range(3)] == [1, 2, 3]
    data.dataset = Growing()
    with pytest.raises(surestep.SurestepError, match=r"replaced by .* type Growing.*Subset.indic"):
        next(steps)


def test_indices_that_count_from_the_end_choose_the_last_samples() -> None:
    indices = np.array([0, 3, -1, -2, 0] * 3)
    net = linear()
    data = Subset(TensorDataset(X, Y), indices)  # type: ignore[arg-type]
    train(surestep.Task(net, nn.MSELoss(), train=data), plain_config(epochs=1, batch_size=7))
    assert_same(by_hand(list(in_batches(7, X[indices], Y[indices]))), weights(net))


class Growing(Dataset[Any]):
    """Samples that become more, by the epoch or because the program labels them."""

    def __init__(self) -> None:
        self.rows = list(range(20))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[self.rows[index]], Y[self.rows[index]]


class GrowingByEpoch(Growing):
    """Samples that become more in each epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Add seven."""
        self.rows = list(range(20 + 7 * epoch))


def first_rows(*counts: int) -> Batches:
    """Return the batches of epochs that read the first so many samples."""
    return [batch for count in counts for batch in in_batches(7, X[:count], Y[:count])]


def set_rows(data: Any, count: int) -> None:
    """Give the first so many samples, as a program that labels or drops some."""
    (data.rows if isinstance(data, Growing) else data.indices)[:] = range(count)


@pytest.mark.filterwarnings("ignore:.*workers had a copy")
@pytest.mark.parametrize("count", [27, 8], ids=["grows", "shrinks"])
@pytest.mark.parametrize("options", [IN_PROCESS, BY_WORKERS])
@pytest.mark.parametrize("kind", [Growing, "subset"])
def test_data_that_grows_or_shrinks_counts_from_the_next_epoch(
    kind: Any, options: Any, count: int
) -> None:
    """As a DataLoader that reads the length at the start of each epoch."""
    data: Any = Subset(TensorDataset(X, Y), list(range(20))) if kind == "subset" else kind()
    net, batches = linear(), first_rows(20, count, count)
    task = surestep.Task(net, nn.MSELoss(), train=data, val=data)
    session = prepare(task, plain_config(max_steps=len(batches), batch_size=7, data=options))
    for result in session.steps():
        if result.step == 3:
            set_rows(data, count)
            break
    message = rf"had 20 samples .* has {count} now.* from step 4 on, the first of epoch 2.*"
    with pytest.warns(UserWarning, match=message):
        for _ in session.steps():
            pass
    assert_same(by_hand(batches), weights(net))
    with pytest.warns(UserWarning, match=f"val data had 20 .* has {count} now"):
        measured = session.evaluate()["val/loss"]
    with torch.no_grad():
        assert_same(float(nn.functional.mse_loss(net(X[:count]), Y[:count])), measured)


@pytest.mark.filterwarnings("ignore:The training data had")
@pytest.mark.parametrize("options", [IN_PROCESS, BY_WORKERS])
def test_data_whose_length_depends_on_the_epoch_is_read_and_resumed(options: Any) -> None:
    batches = first_rows(20, 27, 34, 41)
    for stops in ((17,), (5, 8, 17)):
        for stop in stops:
            net = linear()
            task = surestep.Task(net, nn.MSELoss(), train=GrowingByEpoch())
            config = plain_config(max_steps=17, batch_size=7, data=options)
            with surestep.prepare(task, config, run=f"runs/{len(stops)}") as session:
                for result in session.steps():
                    if result.step == stop:
                        session.save()
                        break
        assert_same(by_hand(batches[:17]), weights(net))


def train_growing(folder: str, rows: int, stop: int, *, grow_at: int = 0) -> nn.Linear:
    """Train up to a step on data with so many samples, which has 27 from a step on, and save."""
    net, data = linear(), Growing()
    set_rows(data, rows)
    task = surestep.Task(net, nn.MSELoss(), train=data)
    config = plain_config(max_steps=10, batch_size=7)
    with surestep.prepare(task, config, run=folder, allow=["data"]) as session:
        for result in session.steps():
            if result.step == grow_at:
                set_rows(data, 27)
            if result.step == stop:
                session.save()
                break
    return net


@pytest.mark.filterwarnings("ignore:The training data had")
@pytest.mark.parametrize(("stop", "grow_at"), [(3, 0), (5, 3)])
def test_data_that_grew_is_resumed_if_it_is_given_again(stop: int, grow_at: int) -> None:
    train_growing("runs/grew", 20, stop, grow_at=grow_at)
    net = train_growing("runs/grew", 27, 10)
    assert_same(by_hand(first_rows(20, 27, 27)[:10]), weights(net))


@pytest.mark.filterwarnings("ignore:The training data had")
def test_run_resumes_at_a_position_that_the_data_of_the_start_does_not_have() -> None:
    class Large(Growing):
        def set_epoch(self, epoch: int) -> None:
            self.rows = list(range(47 if epoch else 20))

    for stop in (9, 12):
        net = linear()
        task = surestep.Task(net, nn.MSELoss(), train=Large())
        config = plain_config(max_steps=12, batch_size=7)
        with surestep.prepare(task, config, run="runs/large", resume="auto") as session:
            assert session.state.progress.step == (0 if stop == 9 else 9)
            for result in session.steps():
                if result.step == stop:
                    session.save()
                    break
    assert_same(by_hand(first_rows(20, 47, 47)[:12]), weights(net))


@pytest.mark.filterwarnings("ignore:The training data had")
def test_data_that_grew_and_is_not_given_again_is_an_error() -> None:
    train_growing("runs/grew", 20, 5, grow_at=3)
    message = r"Epoch 2 began with 27 samples of the train data, and 20 are there now.*from_="
    with pytest.raises(surestep.SurestepError, match=message):
        train_growing("runs/grew", 20, 10)


def test_data_that_has_no_batch_left_is_an_error() -> None:
    data = Growing()
    task = surestep.Task(linear(), nn.MSELoss(), train=data)
    session = prepare(task, plain_config(max_steps=9, batch_size=7, data={"drop_last": True}))
    steps = session.steps()
    assert [next(steps).step for _ in range(2)] == [1, 2]
    set_rows(data, 6)
    with pytest.raises(surestep.SurestepError, match=r"had 20 samples .* has 6 now.* one batch"):
        next(steps)


class Scaled(DataLoader[Any]):
    """A DataLoader that changes its batches."""

    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield 2 * x, y


@pytest.mark.parametrize("part", ["train", "val"])
def test_loader_with_its_own_iteration_is_read_as_a_stream_of_its_batches(part: str) -> None:
    loader, net = Scaled(TensorDataset(X, Y), 7), linear()
    data = {"train": TensorDataset(X, Y), part: loader}
    with pytest.raises(surestep.SurestepError, match=r"Scaled with its own __iter__.*batched=True"):
        prepare(surestep.Task(net, nn.MSELoss(), **data), plain_config(max_steps=1))
    task = surestep.Task(net, nn.MSELoss(), train=lambda: loader, batched=True)
    config = surestep.Config(
        max_steps=14,
        optim={"name": "sgd", "lr": 0.1, "weight_decay": 0.0, "momentum": 0.0},
        max_grad_norm=None,
        schedule="constant",
        logging={"progress": "quiet"},
    )
    train(task, config)
    scaled = [(2 * x, y) for _ in range(2) for x, y in in_batches(7, X, Y)]
    assert_same(by_hand(scaled), weights(net))


class Counting:
    """A transform of batches that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return x * (1 + self.calls / 10), y


def test_transform_that_counts_its_calls_begins_at_the_first_step() -> None:
    count, net = Counting(), linear()
    batches = [count(x, y) for _ in range(2) for x, y in in_batches(7, X, Y)]
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y), batch_transform=Counting())
    train(task, plain_config(epochs=2, batch_size=7))
    assert_same(by_hand(batches), weights(net))


class Late:
    """A transform of batches that makes its generator when it needs one."""

    def __init__(self) -> None:
        self.rng: Any = None

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.rng = np.random.default_rng(0) if self.rng is None else self.rng
        return x + self.rng.random(), y


@pytest.mark.filterwarnings("ignore:.*was created in the first step")
def test_generator_that_a_transform_makes_late_draws_the_same_after_a_resume() -> None:
    found = []
    for stops, folder in (((20,), "runs/whole"), ((9, 20), "runs/parts")):
        for stop in stops:
            net = linear()
            task = surestep.Task(net, nn.MSELoss(), train=(X, Y), batch_transform=Late())
            config = plain_config(max_steps=stop, batch_size=7)
            surestep.Trainer(task, config, run=folder).fit()
        found.append(weights(net))
    assert_same(*found, exact=True)


class Scaling(Dataset[Any]):
    """Samples that are larger in later epochs."""

    scale = 1.0

    def set_epoch(self, epoch: int) -> None:
        """Set the scale of an epoch."""
        self.scale = 1 + epoch / 10

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.scale * X[index], Y[index]


@pytest.mark.parametrize("workers", [0, 1])
def test_other_part_of_a_dataset_with_epochs_is_evaluated_at_the_first(workers: int) -> None:
    data, net = Scaling(), linear()
    train, val = Subset(data, range(30)), Subset(data, range(30, N))
    task = surestep.Task(net, nn.MSELoss(), train=train, val=val)
    config = plain_config(max_steps=15, batch_size=7, data={"num_workers": workers})
    found = []
    session = prepare(task, config)
    for result in session.steps():
        if result.step in (3, 8, 15):
            found.append(session.evaluate()["val/loss"])
            with torch.no_grad():
                plain = float(nn.functional.mse_loss(net(X[30:]), Y[30:]))
            assert_same(plain, found[-1])
    batches = [
        ((1 + epoch / 10) * x, y) for epoch in range(3) for x, y in in_batches(7, X[:30], Y[:30])
    ]
    assert_same(by_hand(batches), weights(net))


class OwnInEachProcess(Dataset[Any]):
    """Samples with noise of a generator that each process makes for itself."""

    def __init__(self) -> None:
        self.generators: dict[int, np.random.Generator] = {}

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = self.generators.setdefault(os.getpid(), np.random.default_rng(0))
        return X[index] + rng.random(), Y[index]


class OwnForEachGroup(OwnInEachProcess):
    """Samples with noise of a generator of their group, which is made when it is first needed."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = self.generators.setdefault(index * 5 % 3, np.random.default_rng(0))
        return X[index] + rng.random(), Y[index]


@pytest.mark.parametrize("dataset", [OwnInEachProcess, OwnForEachGroup])
def test_generators_in_a_dict_draw_the_same_in_every_process(
    dataset: type[OwnInEachProcess],
) -> None:
    found = []
    for workers in (0, 1, 2):
        net = linear()
        task = surestep.Task(net, nn.MSELoss(), train=dataset())
        train(task, plain_config(epochs=1, batch_size=7, data={"num_workers": workers}))
        found.append(weights(net))
    assert_same([found[0]] * 2, found[1:], exact=True)
