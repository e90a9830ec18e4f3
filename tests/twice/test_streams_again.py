"""Data again: samplers, excluded samples, collation of splits, ready batches, lanes, buffers."""

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

import surestep
from surestep import samplers
from tests.twice.compare import (
    assert_same,
    in_batches,
    plain_config,
    prepare,
    seed_all,
    seed_of,
    weights,
)

G = torch.Generator().manual_seed(41)
X = torch.randn(47, 4, generator=G, dtype=torch.float64)
Z = torch.randn(47, 2, generator=G, dtype=torch.float64)
Batches = list[tuple[Tensor, Tensor]]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def by_hand(batches: Batches) -> list[Any]:
    """Take a step on each batch; return the losses and the weights."""
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for x, z in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), z)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, weights(model)]


def of_orders(size: int, *orders: Any) -> Batches:
    """Return the batches of epochs of these indices."""
    return [batch for order in orders for batch in in_batches(size, X[order], Z[order])]


def config(**options: Any) -> surestep.Config:
    return plain_config(**{"batch_size": 7, "optim": {"momentum": 0.9}} | options)


OWN_ORDER: dict[str, Any] = {"shuffle": surestep.NOT_SET}  # that of a sampler


def run(data: Any, *stops: int, options: surestep.Config, **task_options: Any) -> list[Any]:
    """Train, resumed after each of these steps; return the losses and the weights."""
    losses: list[float] = []
    folder = f"run-{len(os.listdir())}"
    for stop in (*stops, 10**6):
        model = net()
        task = surestep.Task(model, nn.MSELoss(), train=data, **task_options)
        with surestep.prepare(task, options, run=folder) as session:
            for result in session.steps():
                losses.append(float(result.loss))
                if result.step == stop:
                    session.save()
                    break
    return [losses, weights(model)]


def ordered(epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of("order", 0, epoch))


class Rows(Dataset[Any]):
    """Samples by index."""

    def __init__(self, count: int = 47) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return X[index], Z[index]


@pytest.mark.parametrize("micro", [7, 3])
def test_samplers_of_a_data_loader_give_the_order_of_their_generator(micro: int) -> None:
    chance = torch.rand(47, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chance[::3] = 0
    some = [5, 11, 40, 2, 30, 31, 32, 8, 9, 46, 0]

    def weighted(epoch: int) -> list[int]:
        return torch.multinomial(chance, 31, True, generator=ordered(epoch)).tolist()

    def subset(epoch: int) -> list[int]:
        return [some[i] for i in torch.randperm(len(some), generator=ordered(epoch)).tolist()]

    options = config(epochs=2, micro_batch_size=micro, data=OWN_ORDER)
    loader = DataLoader(Rows(), batch_size=7, sampler=WeightedRandomSampler(chance, 31))
    assert_same(
        by_hand(of_orders(7, weighted(0), weighted(1))), run(loader, 2, 5, 6, options=options)
    )
    loader = DataLoader(Rows(), batch_size=4, sampler=SubsetRandomSampler(some), drop_last=True)
    options = config(epochs=2, batch_size=4, micro_batch_size=3, data=OWN_ORDER)
    assert_same(
        by_hand(of_orders(4, subset(0)[:8], subset(1)[:8])), run(loader, 1, options=options)
    )


def test_random_sampler_with_replacement_and_own_batch_sampler() -> None:
    def drawn(epoch: int) -> list[int]:
        return list(RandomSampler(range(47), True, 29, generator=ordered(epoch)))

    loader = DataLoader(Rows(), batch_size=7, sampler=RandomSampler(range(47), True, 29))
    assert_same(
        by_hand(of_orders(7, drawn(0), drawn(1))),
        run(loader, 4, options=config(epochs=2, data=OWN_ORDER)),
    )

    class Zigzag(BatchSampler):
        """Batches from both ends, which begin elsewhere in each epoch."""

        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[list[int]]:
            rows = [(i * (1 if i % 2 else -1) + 3 * self.epoch) % 47 for i in range(38)]
            for first in range(0, 38, 5):
                yield rows[first : first + 5]

        def __len__(self) -> int:
            return 8

    def zigzag(epoch: int) -> list[int]:
        return [(i * (1 if i % 2 else -1) + 3 * epoch) % 47 for i in range(38)]

    loader = DataLoader(Rows(), batch_sampler=Zigzag(range(38), 5, False))  # type: ignore[arg-type]
    options = config(epochs=2, batch_size=5, data=OWN_ORDER)
    assert_same(by_hand(of_orders(5, zigzag(0), zigzag(1))), run(loader, 3, 8, 9, options=options))


def test_excluded_samples_close_up_in_any_order() -> None:
    out = [0, 3, 4, 21, 46]
    kept = [i for i in range(47) if i not in out]

    def shuffled(epoch: int) -> list[int]:
        return [i for i in torch.randperm(47, generator=ordered(epoch)).tolist() if i not in out]

    options = config(epochs=2, exclude_samples=out, micro_batch_size=4)
    assert_same(by_hand(of_orders(7, kept, kept)), run((X, Z), 2, 9, options=options))
    plain = of_orders(5, shuffled(0)[:40], shuffled(1)[:40])
    options = config(
        epochs=2, batch_size=5, exclude_samples=out, data={"shuffle": True, "drop_last": True}
    )
    assert_same(by_hand(plain), run(Rows(), 3, options=options))
    inside = Subset(Rows(), list(range(40, 8, -1)))  # the index is that of the subset
    left = [40 - i for i in range(32) if i not in (1, 30)]
    options = config(epochs=1, exclude_samples=[1, 30])
    assert_same(by_hand(of_orders(7, left)), run(inside, 2, options=options))


def test_mixture_reads_each_dataset_in_passes_and_resumes() -> None:
    parts = {"a": 11, "b": 31}
    counts = {"a": 17, "b": 6}

    def epoch_of(epoch: int) -> list[int]:
        rows, first = [], 0
        for name, size in parts.items():
            begin, taken = epoch * counts[name], []
            for at in range(begin, begin + counts[name]):
                seed = seed_of("mixture", 0, at // size, name)
                order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
                taken.append(first + int(order[at % size]))
            rows.append(taken)
            first += size
        order = torch.randperm(23, generator=ordered(epoch)).tolist()
        queues = [iter(taken) for taken in rows]
        return [next(queues[0 if place < counts["a"] else 1]) for place in order]

    data = {"a": Rows(11), "b": Subset(Rows(), range(11, 42))}
    options = config(epochs=3, micro_batch_size=3, data=OWN_ORDER)
    plain = by_hand(of_orders(7, *(epoch_of(epoch) for epoch in range(3))))
    mixed = samplers.mixture({"a": 17 / 23, "b": 6 / 23}, samples=23)
    assert_same(plain, run(data, 2, 4, 7, options=options, sampler=mixed))


def test_custom_order_by_epoch_with_draws_and_repeats() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [(7 * epoch + int(i)) % 47 for i in torch.randint(0, 20, (23,))]

    def drawn(epoch: int) -> list[int]:
        seed_all("sampler", 0, epoch, 0)
        return order(0, epoch)

    plain = by_hand(of_orders(7, drawn(0), drawn(1)))
    options = config(epochs=2, data=OWN_ORDER)
    assert_same(plain, run((X, Z), 3, 4, 6, options=options, sampler=samplers.custom(order)))


def test_each_split_is_collated_by_its_own_function() -> None:
    def noisy(samples: list[Any]) -> Any:
        x, z = default_collate(samples)
        return x + 0.1 * torch.randn(x.shape).double(), z

    def plain_collate(samples: list[Any]) -> Any:
        return default_collate(samples)

    def shifted(samples: list[Any]) -> Any:
        x, z = default_collate(samples)
        return x + 1, z

    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for first in range(0, 47, 7):
        seed_all("load", 0, 0, first, "train")
        x, z = noisy([Rows()[i] for i in range(first, min(47, first + 7))])
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), z)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        ends = [
            F.mse_loss(model(X[:13]), Z[:13]).item(),
            F.mse_loss(model(X[:5] + 1), Z[:5]).item(),
            F.mse_loss(model(X[20:29]), Z[20:29]).item(),
        ]
    ours = net()
    task = surestep.Task(
        ours,
        nn.MSELoss(),
        train=DataLoader(Rows(), batch_size=7, collate_fn=noisy),
        val={
            "plain": DataLoader(Rows(13), batch_size=4, collate_fn=plain_collate),
            "shifted": DataLoader(Rows(5), batch_size=2, collate_fn=shifted),
            "memory": (X[20:29], Z[20:29]),
        },
    )
    session = prepare(task, plain_config(epochs=1))
    found = [float(result.loss) for result in session.steps()]
    metrics = session.evaluate()
    assert_same([losses, weights(model)], [found, weights(ours)])
    assert_same(ends, [metrics[f"{name}/loss"] for name in ("plain", "shifted", "memory")])


def test_ready_batches_of_a_batched_dataset_are_shuffled_as_batches() -> None:
    groups = [[3, 9, 40], [0], [1, 2, 4, 5, 6], [11, 12], [46, 30, 31, 32]]

    def shuffled(epoch: int) -> list[list[int]]:
        return [groups[i] for i in torch.randperm(5, generator=ordered(epoch)).tolist()]

    batches: Batches = []
    for epoch in range(3):
        order = shuffled(epoch)
        for first in range(0, 5, 2):
            rows = [row for group in order[first : first + 2] for row in group]
            batches.append((X[rows], Z[rows]))
    data = surestep.BatchedDataset(Rows(), groups)
    options = config(epochs=3, batch_size=2, data={"shuffle": True})
    assert_same(by_hand(batches), run(data, 1, 4, 7, options=options, batched=True))


class Counted(IterableDataset[Any]):
    """Shards by worker, with a state of their own."""

    def __init__(self, count: int = 47) -> None:
        self.count, self.at = count, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        rows = list(range(worker, self.count, workers))
        while self.at < len(rows):
            self.at += 1
            yield X[rows[self.at - 1]], Z[rows[self.at - 1]]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("drop", [False, True])
def test_workers_with_states_and_dropped_last_batches_resume_anywhere(drop: bool) -> None:
    first, second = list(range(0, 47, 2)), list(range(1, 47, 2))  # 24 and 23
    epoch = []
    for number in range(4):
        epoch += [first[5 * number : 5 * number + 5], second[5 * number : 5 * number + 5]]
    rest = first[20:] + second[20:]
    epoch += [rest[:5]] if drop else [rest[:5], rest[5:]]
    batches = [(X[rows], Z[rows]) for _ in range(2) for rows in epoch]
    data = {"num_workers": 2, "drop_last": drop}
    options = config(batch_size=5, max_steps=len(batches), micro_batch_size=2, data=data)
    an_epoch = len(batches) // 2
    assert_same(by_hand(batches), run(Counted(), 3, an_epoch, 14, options=options))


def test_shuffle_buffer_larger_than_the_stream_and_on_two_workers() -> None:
    class Plain(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
            for row in range(worker, 47, workers):
                yield X[row], Z[row]

    def shuffled(rows: list[int], size: int, epoch: int, worker: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed_of("buffer", 0, epoch, worker))
        buffer, order = rows[:size], []
        for row in rows[size:]:
            chosen = int(torch.randint(size, (), generator=generator))
            order.append(buffer[chosen])
            buffer[chosen] = row
        left = torch.randperm(len(buffer), generator=generator).tolist()
        return order + [buffer[i] for i in left]

    for size, workers in ((1000, 0), (9, 2)):
        batches: list[list[int]] = []
        for epoch in range(2):
            if not workers:
                order = shuffled(list(range(47)), size, epoch, 0)
                batches += [order[i : i + 7] for i in range(0, 47, 7)]
                continue
            a = shuffled(list(range(0, 47, 2)), size, epoch, 0)
            b = shuffled(list(range(1, 47, 2)), size, epoch, 1)
            for i in range(0, 21, 7):
                batches += [a[i : i + 7], b[i : i + 7]]
            rest = a[21:] + b[21:]
            batches += [rest]
        data = {
            "num_workers": workers,
            "shuffle_buffer": size,
            "shuffle": surestep.NOT_SET,
        }
        options = config(max_steps=len(batches), data=data)
        plain = by_hand([(X[rows], Z[rows]) for rows in batches])
        losses = []
        for stop in (3, 7, 10, 100):
            model = net()
            task = surestep.Task(model, nn.MSELoss(), train=Plain())
            with surestep.prepare(task, options, run=f"run{workers}") as session:
                for result in session.steps():
                    losses.append(float(result.loss))
                    if result.step == stop:
                        session.save()
                        break
        assert_same(plain, [losses, weights(model)])


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.cells = nn.LSTM(3, 4, batch_first=True).double()
        self.head = nn.Linear(4, 3).double()

    def forward(self, x: Tensor, state: Any) -> Any:
        found, state = self.cells(x, state)
        return self.head(found), state


@pytest.mark.parametrize("size", [5, 3, 2])
def test_lanes_of_an_lstm_equal_a_loop_that_keeps_the_state_of_each(size: int) -> None:
    series = torch.randn(173, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    start = (torch.full((1, 1, 4), 0.2).double(), torch.full((1, 1, 4), -0.1).double())
    lanes, length = 5, 6
    windows = 172 // (lanes * length)
    inputs = series[:-1][: lanes * windows * length].view(lanes, windows, length, 3)
    targets = series[1:][: lanes * windows * length].view(lanes, windows, length, 3)

    def passes(model: Lstm, optimizer: Any) -> Iterator[float]:
        """Read all windows in time order, `size` lanes at once."""
        states = [tuple(s.clone() for s in start) for _ in range(lanes)]
        places = [(w, lane) for w in range(windows) for lane in range(lanes)]
        for first in range(0, len(places), size):
            chosen = places[first : first + size]
            for w, lane in chosen:
                if w == 0:
                    states[lane] = tuple(s.clone() for s in start)
            state = tuple(torch.cat([states[lane][i] for _, lane in chosen], 1) for i in (0, 1))
            x = torch.stack([inputs[lane, w] for w, lane in chosen])
            y = torch.stack([targets[lane, w] for w, lane in chosen])
            out, new = model(x, state)
            loss = F.mse_loss(out, y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for place, (_, lane) in enumerate(chosen):
                states[lane] = tuple(s[:, place : place + 1].detach() for s in new)
            yield loss.item() if optimizer is not None else loss.item() * len(chosen)

    plain_net = Lstm()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.2, momentum=0.9)
    losses, values = [], []
    for _ in range(2):
        for loss in passes(plain_net, optimizer):
            losses.append(loss)
        with torch.no_grad():
            values.append(sum(passes(copy.deepcopy(plain_net).eval(), None)) / (lanes * windows))

    found = []
    for stop in (1, 4, 8, 1000):
        model = surestep.StatefulRNN(Lstm(), start, lanes=lanes, dim=1)
        data = surestep.BPTTDataset(series, lanes=lanes, length=length)
        task = surestep.Task(model, nn.MSELoss(), train=data, val=data)
        options = plain_config(
            epochs=2,
            batch_size=size,
            micro_batch_size=2,
            optim={"lr": 0.2, "momentum": 0.9},
            data={"shuffle": surestep.NOT_SET},
            validation={"batch_size": size},
        )
        with surestep.prepare(task, options, run="run") as session:
            for result in session.steps():
                found.append(float(result.loss))
                if result.step % 3 == 0:
                    session.evaluate()
                if result.step == stop:
                    session.save()
                    break
            now = session.evaluate()["val/loss"]
    assert_same([losses, weights(plain_net)], [found, weights(model.model)])
    assert_same(values[-1], now)


def test_limited_training_batches_of_a_mixture_of_kinds_resume() -> None:
    data = ConcatDataset([Rows(9), Subset(Rows(), range(20, 47))])
    rows = list(range(9)) + list(range(20, 47))

    def shuffled(epoch: int) -> list[int]:
        order = torch.randperm(36, generator=ordered(epoch)).tolist()
        return [rows[i] for i in order][:28]

    options = config(epochs=2, limit_train_batches=4, data={"shuffle": True})
    assert_same(
        by_hand(of_orders(7, shuffled(0), shuffled(1))), run(data, 2, 4, 5, options=options)
    )
