import random

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from surestep import derive_seed
from surestep.base.errors import DataError
from surestep.engine.data.dataloader import has_default_sampler, loader_batching, sampler_order
from surestep.engine.plan.batching import DatasetView

DATA = DatasetView(20, lambda: iter(range(20)))


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor(float(index))


ROWS = Squares()


def loader(sampler=None, **options):
    return DataLoader(ROWS, **({"batch_size": 4, "sampler": sampler} | options))


def order_of(data):
    return sampler_order(data).bind(DATA)


class Reversed(Sampler):
    """An order that depends only on the epoch set by `set_epoch`."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 20

    def __iter__(self):
        return iter([(index + self.epoch) % 20 for index in reversed(range(20))])


class OfHistory(Reversed):
    """An order that depends on the state of its own generator."""

    def __init__(self):
        self.random = random.Random(0)

    def __iter__(self):
        return iter(self.random.sample(range(20), 20))


class Global(Reversed):
    """Draws from Python's own generator."""

    def __iter__(self):
        return iter(random.sample(range(20), 20))


@pytest.mark.parametrize(
    "make",
    [
        lambda **g: RandomSampler(ROWS, replacement=True, **g),
        lambda **g: RandomSampler(ROWS, num_samples=7, **g),
        lambda **g: SubsetRandomSampler([1, 2, 13], **g),
        lambda **g: WeightedRandomSampler(list(range(20)), 33, **g),
    ],
    ids=["replacement", "part", "subset", "weighted"],
)
def test_torch_samplers_are_seeded_by_epoch(make):
    sampler = make()
    found = order_of(loader(sampler)).indices(5, 2, 4)
    seeded = make(generator=torch.Generator().manual_seed(derive_seed("order", 5, 2)))
    assert found.tolist() == list(seeded)
    assert sampler.generator is None


def test_generator_of_a_sampler_is_restored():
    own = torch.Generator()
    sampler = SubsetRandomSampler([1, 2], generator=own)
    order_of(loader(sampler))
    assert sampler.generator is own
    assert torch.equal(own.get_state(), torch.Generator().get_state())


@pytest.mark.parametrize("make", [Reversed, Global, lambda: [3, 1, 2]])
def test_custom_sampler_gives_the_same_order_for_an_epoch(make):
    order = order_of(loader(make()))
    first = order.indices(0, 4, 4)
    order.indices(0, 5, 4)
    assert torch.equal(order.indices(0, 4, 4), first)
    assert len(order) == len(first)


def test_set_epoch_of_a_sampler_is_called():
    assert order_of(loader(Reversed())).indices(0, 3, 4)[0] == 2


def test_distributed_sampler_of_one_rank_is_accepted():
    sampler = DistributedSampler(ROWS, num_replicas=1, rank=0, seed=3)
    found = order_of(loader(sampler)).indices(0, 2, 4)
    sampler.set_epoch(2)
    assert found.tolist() == list(sampler)


def test_custom_batch_sampler_sets_the_order_and_the_batch_size():
    class Whole(BatchSampler):
        """A subclass of torch's batch sampler."""

    for kind in (Whole, BatchSampler):
        batches = kind(SubsetRandomSampler(range(10)), 4, False)
        data = loader(batch_size=1, batch_sampler=batches)
        assert loader_batching(data) == {"batch_size": 4, "drop_last": False}
        seeded = torch.Generator().manual_seed(derive_seed("order", 0, 1))
        expected = torch.randperm(10, generator=seeded)
        assert torch.equal(order_of(data).indices(0, 1, 4), expected)


def test_samplers_that_torch_creates_for_shuffle_are_default_samplers():
    assert has_default_sampler(loader(shuffle=True))
    assert has_default_sampler(loader())
    assert has_default_sampler(
        loader(batch_size=1, batch_sampler=BatchSampler(RandomSampler(ROWS), 4, True))
    )
    assert not has_default_sampler(loader(SequentialSampler(range(5))))
    assert sampler_order(loader(shuffle=True)) is None


class Endless(Reversed):
    def __iter__(self):
        while True:
            yield 0


class Unsized:
    def __iter__(self):
        return iter(range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": OfHistory()}, r"OfHistory gave two orders .* of surestep\.samplers instead"),
        ({"sampler": Endless()}, "Endless gave 21 indices for epoch 2, and its length is 20"),
        ({"sampler": Unsized()}, "Unsized has no __len__"),
        ({"sampler": [1, 2, 20]}, r"list gave .* from 1 to 20 for epoch 1, and there are 20"),
        ({"sampler": DistributedSampler(ROWS, 2, 0)}, "one of 2 ranks its shard"),
        ({"batch_sampler": [[0, 1], [2], [3, 4]]}, r"a batch of 2 after one of 1, .*by_length"),
        ({"batch_sampler": [[0, 1], [2, 3, 4]]}, r"a batch of 3 after one of 2"),
    ],
)
def test_sampler_that_cannot_be_seeded_or_sized_is_rejected(options, message):
    data = DataLoader(ROWS, **({"batch_size": 4} if "sampler" in options else {}), **options)
    with pytest.raises(DataError, match=message):
        order_of(data)
