import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from surestep.base.errors import DataError
from surestep.engine.data.dataset import unpack
from surestep.engine.data.order import Cut, order_of
from surestep.engine.data.source import InMemory, Loaded
from tests import tiny

X, Y = tiny.data(11)


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(float(index)), index * index


class Noisy(Squares):
    """Draws from every generator that people draw from."""

    def __getitem__(self, index):
        drawn = (random.random(), np.random.rand(), float(torch.rand(())))
        return torch.tensor([index, *drawn], dtype=torch.float64)


def read(dataset, *, order=None, epoch=0, cut=4, seed=0, **options):
    loaded = Loaded(dataset, seed=seed, collate=None, options=options)
    ranges = [range(a, min(a + cut, len(dataset))) for a in range(0, len(dataset), cut)]
    return list(loaded.read(epoch, order, ranges))


def rows(batches):
    return torch.cat(batches)


def test_an_order_is_a_permutation_by_seed_and_epoch():
    first = order_of(50, seed=1, epoch=2)
    assert sorted(first.tolist()) == list(range(50))
    assert torch.equal(first, order_of(50, seed=1, epoch=2))
    assert not torch.equal(first, order_of(50, seed=1, epoch=3))
    assert not torch.equal(first, order_of(50, seed=2, epoch=2))


def test_an_order_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    order_of(50, seed=1, epoch=2)
    assert torch.equal(before, torch.get_rng_state())


def test_an_epoch_is_cut_into_batches_and_those_into_micro_batches():
    cut = Cut(samples=20, batch_size=8, micro_batch_size=3)
    assert list(cut.batches(0)) == [(0, 8, False), (8, 16, False), (16, 20, True)]
    assert list(cut.micro_batches(8, 16)) == [(8, 11), (11, 14), (14, 16)]
    assert list(cut.micro_batches(16, 20)) == [(16, 19), (19, 20)]


def test_drop_last_drops_the_smaller_batch_and_the_one_before_ends_the_epoch():
    cut = Cut(samples=20, batch_size=8, micro_batch_size=3, drop_last=True)
    assert list(cut.batches(0)) == [(0, 8, False), (8, 16, True)]


def test_drop_last_drops_nothing_where_all_are_whole():
    whole = Cut(samples=16, batch_size=8, micro_batch_size=8)
    assert list(whole._replace(drop_last=True).batches(0)) == list(whole.batches(0))


@pytest.mark.parametrize("drop_last", [False, True])
def test_from_a_place_on_come_the_same_batches(drop_last):
    cut = Cut(samples=20, batch_size=8, micro_batch_size=8, drop_last=drop_last)
    assert list(cut.batches(8)) == list(cut.batches(0))[1:]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((X, Y), (X, Y)),
        (TensorDataset(X, Y), (X, Y)),
        ((X.numpy(), Y.numpy()), (X, Y)),
        (Subset(TensorDataset(X, Y), [3, 1, 8]), (X[[3, 1, 8]], Y[[3, 1, 8]])),
        (Subset(TensorDataset(X, Y), range(2, 5)), (X[2:5], Y[2:5])),
        (Subset(Subset(TensorDataset(X, Y), [3, 1, 8]), [2, 0]), (X[[8, 3]], Y[[8, 3]])),
    ],
    ids=["tuple", "TensorDataset", "numpy", "Subset", "Subset of a range", "Subset of a Subset"],
)
def test_tensors_in_memory_are_sliced(data, expected):
    source = InMemory(*unpack(data))
    assert len(source) == len(expected[1])
    (batch,) = source.read(0, None, [range(len(source))])
    assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))
    order = torch.arange(len(source)).flip(0)
    (batch,) = source.read(0, order, [range(len(source))])
    assert torch.equal(batch[1], expected[1].flip(0))


def test_a_dict_of_tensors_is_sliced_by_name():
    (batch,) = InMemory(*unpack({"x": X, "y": Y.numpy()})).read(0, None, [range(2, 4)])
    assert torch.equal(batch["x"], X[2:4])
    assert torch.equal(batch["y"], Y[2:4])


def test_tensors_of_different_lengths_are_refused():
    with pytest.raises(DataError, match=r"different lengths: \[5, 11\].*one row for each sample"):
        InMemory((X, Y[:5]))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_dataset_is_read_in_its_order(workers):
    order = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    values = [batch[0] for batch in read(Squares(), order=order, num_workers=workers)]
    assert [len(each) for each in values] == [4, 4, 2]
    assert rows(values).tolist() == order.tolist()


def test_loading_is_random_by_place_whatever_loads_it():
    expected = read(Noisy())
    for options in (
        {"num_workers": 1},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "prefetch_factor": 5},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"cut": 3},
    ):
        assert torch.equal(rows(read(Noisy(), **options)), rows(expected)), options
    assert not torch.equal(rows(read(Noisy(), epoch=1))[:, 1:], rows(expected)[:, 1:])
    assert not torch.equal(rows(read(Noisy(), seed=1))[:, 1:], rows(expected)[:, 1:])


def test_a_part_of_a_dataset_is_random_by_place_too():
    part = Subset(Noisy(), range(10))
    assert torch.equal(rows(read(part, cut=10)), rows(read(part, cut=3)))


def test_loading_leaves_the_global_generators_alone():
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    for workers in (0, 1):
        read(Noisy(), num_workers=workers)
    assert torch.equal(torch.rand(()), expected)


def test_the_users_own_worker_start_runs():
    seen = torch.zeros(2).share_memory_()

    def start(worker):
        seen[worker] = 1

    read(Squares(), num_workers=2, worker_init_fn=start)
    assert seen.tolist() == [1, 1]
