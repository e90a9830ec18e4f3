import random

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

from surestep.engine.data.dataset import in_memory
from surestep.engine.data.sources import InMemory, MapStyleSource, batched_getter
from surestep.engine.plan.batching import BatchLayout, epoch_permutation, positions_or_dummy
from tests import tiny

X, Y = tiny.data(11)


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(float(index)), index * index


class Noisy(Squares):
    """Draws from each of the usual global generators."""

    def __getitem__(self, index):
        drawn = (random.random(), np.random.rand(), float(torch.rand(())))
        return torch.tensor([index, *drawn], dtype=torch.float64)


class Padded(Squares):
    """Samples of a different dataset, padded to the length of those of `OwnNoise`."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitem__(self, index):
        return torch.nn.functional.pad(self.dataset[index], (0, 5))


class OwnNoise(Squares):
    """Draws from generators of its own, two of which the first load makes.

    torch's is one of them, since torch cannot send it to a process that is spawned.
    """

    def __init__(self):
        self.torch, self.python = None, [random.Random()]
        self.numpy, self.old, self.late = np.random.default_rng(), np.random.RandomState(), None

    def __getitem__(self, index):
        if self.late is None:
            self.late, self.torch = random.Random(index), torch.Generator()
        drawn = (float(torch.rand((), generator=self.torch)), self.python[0].random())
        drawn += (self.numpy.random(), self.numpy.standard_normal(), self.old.randn())
        drawn += (self.late.random(), np.random.randn(), random.gauss(0, 1))
        return torch.tensor([index, *drawn], dtype=torch.float64)


class OfWorker(Squares):
    """Returns the seed that torch gives to workers."""

    def __getitem__(self, index):
        return torch.tensor([index, torch.utils.data.get_worker_info().seed, torch.initial_seed()])


class Together(Squares):
    """Loads several samples at once."""

    def __getitems__(self, rows):
        return [torch.tensor([row, torch.rand(())]) for row in rows]


def with_noise(samples):
    batch = torch.stack(samples)
    return torch.cat([batch, torch.rand(len(batch), 1).double()], dim=1)


def read(dataset, *, order=None, epoch=0, cut=4, seed=0, collate=None, **options):
    loaded = MapStyleSource(dataset, seed=seed, collate=collate, options=options)
    ranges = [range(a, min(a + cut, len(dataset))) for a in range(0, len(dataset), cut)]
    return list(loaded.read(epoch, order, ranges))


def rows(batches):
    return torch.cat(batches)


def test_epoch_permutation_depends_on_seed_and_epoch():
    first = epoch_permutation(50, seed=1, epoch=2)
    assert sorted(first.tolist()) == list(range(50))
    assert torch.equal(first, epoch_permutation(50, seed=1, epoch=2))
    assert not torch.equal(first, epoch_permutation(50, seed=1, epoch=3))
    assert not torch.equal(first, epoch_permutation(50, seed=2, epoch=2))


def test_epoch_permutation_preserves_the_global_random_state():
    before = torch.get_rng_state()
    epoch_permutation(50, seed=1, epoch=2)
    assert torch.equal(before, torch.get_rng_state())


def test_epoch_is_split_into_batches_and_those_into_micro_batches():
    cut = BatchLayout(samples=20, batch_size=8, micro_batch_size=3)
    assert list(cut.batches(0)) == [(0, 8, False), (8, 16, False), (16, 20, True)]
    assert list(cut.micro_batches(8, 16)) == [(8, 11), (11, 14), (14, 16)]
    assert list(cut.micro_batches(16, 20)) == [(16, 19), (19, 20)]


def test_rank_that_needs_the_full_batch_reads_all_shards_in_order():
    cut = BatchLayout(samples=20, batch_size=8, micro_batch_size=3, rank=1, ranks=2)
    shares = [list(cut._replace(rank=rank).micro_batches(8, 16)) for rank in (0, 1)]
    assert shares == [[(8, 11), (11, 12)], [(12, 15), (15, 16)]]
    assert list(cut._replace(full=True).micro_batches(8, 16)) == shares[0] + shares[1]


def test_rank_without_samples_reads_one_that_is_there():
    ranges = [range(2, 4), range(5, 5), range(0, 0)]
    assert list(map(positions_or_dummy, ranges)) == [range(2, 4), range(4, 5), range(1)]


def test_drop_last_drops_the_smaller_batch_and_ends_the_epoch_before_it():
    cut = BatchLayout(samples=20, batch_size=8, micro_batch_size=3, drop_last=True)
    assert list(cut.batches(0)) == [(0, 8, False), (8, 16, True)]


def test_drop_last_drops_nothing_if_all_batches_are_full():
    whole = BatchLayout(samples=16, batch_size=8, micro_batch_size=8)
    assert list(whole._replace(drop_last=True).batches(0)) == list(whole.batches(0))


@pytest.mark.parametrize("drop_last", [False, True])
def test_resuming_at_a_position_gives_the_same_batches(drop_last):
    cut = BatchLayout(samples=20, batch_size=8, micro_batch_size=8, drop_last=drop_last)
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
    source = in_memory(data)
    assert len(source) == len(expected[1])
    (batch,) = source.read(0, None, [range(len(source))])
    assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))
    order = torch.arange(len(source)).flip(0)
    (batch,) = source.read(0, order, [range(len(source))])
    assert torch.equal(batch[1], expected[1].flip(0))


def test_dict_of_tensors_is_sliced_by_name():
    (batch,) = in_memory({"x": X, "y": Y.numpy()}).read(0, None, [range(2, 4)])
    assert torch.equal(batch["x"], X[2:4])
    assert torch.equal(batch["y"], Y[2:4])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_dataset_is_read_in_the_given_order(workers):
    order = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    values = [batch[0] for batch in read(Squares(), order=order, num_workers=workers)]
    assert [len(each) for each in values] == [4, 4, 2]
    assert rows(values).tolist() == order.tolist()


WAYS = {
    "one worker": {"num_workers": 1},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
    "prefetch_factor": {"num_workers": 2, "prefetch_factor": 5},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver"},
}


SLOW_WAYS = [pytest.param(way, marks=pytest.mark.slow("starts data workers")) for way in WAYS]


@pytest.mark.parametrize("way", [*SLOW_WAYS, "different micro-batches"])
def test_random_numbers_of_loading_depend_only_on_the_position(way):
    both = ConcatDataset([Padded(Noisy()), OwnNoise()])  # spawning is slow, so only one for both
    found = read(both, **WAYS.get(way, {"cut": 3}))
    assert torch.equal(rows(found), rows(read(both)))


@pytest.mark.parametrize("kind", [Noisy, OwnNoise])
def test_random_numbers_of_loading_differ_by_epoch_seed_and_position(kind):
    drawn = rows(read(kind()))[:, 1:]
    others = [rows(read(kind(), **other))[:, 1:] for other in ({"epoch": 1}, {"seed": 1})]
    assert not any(torch.eq(drawn, other).any() for other in others)
    assert all(len(column.unique()) == len(drawn) for column in drawn.T)
    assert len(drawn[0].unique()) == drawn.shape[1]  # no two generators draw the same


def test_worker_seed_is_the_seed_of_the_position():
    ways = [{"num_workers": n} for n in (1, 2)]
    first, second = (rows(read(OfWorker(), **way)) for way in ways)
    assert torch.equal(first, second)
    assert len(first[:, 1].unique()) == 10


@pytest.mark.parametrize("workers", [1, 2])
def test_collate_fn_and_getitems_are_seeded_by_the_first_position(workers):
    for data, collate in ((Together(), None), (Noisy(), with_noise)):
        found = rows(read(data, collate=collate, num_workers=workers))
        assert torch.equal(found, rows(read(data, collate=collate)))
        assert not torch.equal(found, rows(read(data, collate=collate, cut=3)))


def test_random_numbers_of_a_subset_depend_only_on_the_position():
    part = Subset(Noisy(), range(10))
    assert torch.equal(rows(read(part, cut=10)), rows(read(part, cut=3)))


def test_loading_preserves_the_global_random_state():
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    for workers in (0, 1):
        read(Noisy(), num_workers=workers)
    source = MapStyleSource(Noisy(), seed=0, collate=None, options={})
    for count in (2, 1):  # micro-batches of a batch
        assert len(list(source.take(source.read(0, None, [range(3)] * count), count))) == count
    assert torch.equal(torch.rand(()), expected)


def test_samples_that_are_collated_with_other_numbers_change_no_later_batch():
    source = MapStyleSource(Noisy(), seed=0, collate=with_noise, options={})
    (before,) = source.read(0, None, [range(4)])
    assert not torch.equal(source.load(None, range(4), reseeded=True), before)
    (after,) = source.read(0, None, [range(4)])
    assert torch.equal(after, before)


def test_stack_of_datasets_of_which_one_loads_many_at_once_does_so():
    stacks = StackDataset(Squares(), Together()), StackDataset(a=Together(), b=Squares())
    assert all(batched_getter(stack) is not None for stack in stacks)
    assert batched_getter(StackDataset(Squares(), Squares())) is None


def test_random_numbers_of_the_main_process_do_not_depend_on_workers():
    def drawn(source):
        random.seed(3)
        np.random.seed(3)
        where = [range(start, start + 3) for start in range(0, 9, 3)]
        return [(np.random.randn(), random.gauss(0, 1)) for _ in source.read(0, None, where)]

    def loaded(data, workers):
        return MapStyleSource(data, seed=0, collate=None, options={"num_workers": workers})

    assert drawn(loaded(Noisy(), 0)) == drawn(loaded(Noisy(), 2))
    memory = InMemory((X, Y))
    assert drawn(memory) == drawn(loaded(memory, 0)) == drawn(loaded(memory, 2))


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_is_the_same_with_a_different_numpy_bit_generator(workers):
    expected, bits = rows(read(OwnNoise())), np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(0))
        assert torch.equal(rows(read(OwnNoise(), num_workers=workers)), expected)
    finally:
        np.random.set_bit_generator(bits)


def test_custom_worker_init_fn_runs():
    seen = torch.zeros(2).share_memory_()

    def start(worker):
        seen[worker] = 1

    read(Squares(), num_workers=2, worker_init_fn=start)
    assert seen.tolist() == [1, 1]


class OfEpoch(Squares):
    """Draws its samples again in each epoch."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return torch.tensor([index, self.epoch])


def in_container(dataset, kind):
    return {
        "itself": dataset,
        "Subset": Subset(dataset, range(10)),
        "ConcatDataset": ConcatDataset([dataset]),
        "StackDataset": StackDataset(dataset),
    }[kind]


@pytest.mark.parametrize("kind", ["itself", "Subset", "ConcatDataset", "StackDataset"])
def test_splits_of_one_dataset_are_read_in_their_own_epochs(kind):
    """As an evaluation in the middle of an epoch: it reads the validation split of epoch 0."""
    dataset = OfEpoch()
    train, val = (
        MapStyleSource(in_container(dataset, kind), seed=0, collate=None, options={}, part=part)
        for part in ("train", "val")
    )
    for epoch in (0, 1, 2):
        train.follow(dataset, epoch)
        own = train.read(epoch, None, [range(2), range(2, 4)])
        epochs = [next(own)]
        val.follow(dataset, 0)
        epochs += [next(val.read(0, None, [range(2)])), next(own)]
        read = [batch[0] if kind == "StackDataset" else batch for batch in epochs]
        assert [batch[:, 1].tolist() for batch in read] == [[epoch] * 2, [0, 0], [epoch] * 2]


def test_workers_stay_although_another_split_set_its_own_epoch():
    dataset, alive = OfEpoch(), {"num_workers": 1, "persistent_workers": True}
    train = MapStyleSource(dataset, seed=0, collate=None, options=alive)
    val = MapStyleSource(dataset, seed=0, collate=None, options={}, part="val")
    workers = []
    for epoch in (1, 2):
        train.follow(dataset, epoch)
        read = [batch[:, 1].tolist() for batch in train.read(epoch, None, [range(5)])]
        assert read == [[epoch] * 5]
        workers.append(train._loader._pass)
        val.follow(dataset, 0)
    train.close()
    assert workers[0] is workers[1] is not None


def test_tensors_that_the_program_replaced_are_read():
    source = InMemory((X, Y))
    assert not source.follow(InMemory((X, Y)), 1)
    longer = InMemory(tiny.data(30, seed=1))
    assert source.follow(longer, 1)
    assert len(source) == 30
    ((x, y),) = source.read(1, None, [range(30)])
    assert torch.equal(x, longer.tensors[0])
    assert torch.equal(y, longer.tensors[1])


def test_indices_of_a_subset_that_the_program_replaced_are_read():
    source = InMemory((X, Y), torch.tensor([3, 1, 4]))
    assert not source.follow(InMemory((X, Y), torch.tensor([1, 5])), 1)  # no tensor is new
    assert len(source) == 2
    ((x, _),) = source.read(1, torch.tensor([1, 0]), [range(2)])
    assert torch.equal(x, X[[5, 1]])
    source.follow(InMemory((X, Y), torch.tensor([5, 2])), 2)  # as many
    ((x, _),) = source.read(2, None, [range(2)])
    assert torch.equal(x, X[[5, 2]])
    source.follow(InMemory((X, Y)), 3)
    assert len(source) == len(X)
