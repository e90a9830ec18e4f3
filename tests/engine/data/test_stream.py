import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from surestep import derive_seed
from surestep.base.errors import DataError
from surestep.engine.data.dataset import count_samples, dataset_of, first_samples
from surestep.engine.data.stream import (
    PROBED,
    StreamReader,
    check_repeats,
    check_shards,
    digest,
    is_stream,
    length_of,
    peek,
)
from surestep.engine.data.stream_state import StreamStateTracker, WorkerProgress
from tests import tiny
from tests.engine.data.streams import Sized, Unsized, X, Y


class Plain:
    """An object without torch whose `__iter__` starts from the beginning."""

    def __iter__(self):
        return iter(range(5))


def numbers():
    yield from range(5)


@pytest.mark.parametrize("data", [Unsized(), Sized(), Plain(), numbers, DataLoader(Sized(), 2)])
def test_iterable_data_is_a_stream(data):
    assert is_stream(data)


@pytest.mark.parametrize("data", [[1, 2], (X, Y), {"x": X}, DataLoader([1, 2]), 3, None])
def test_map_style_data_is_not_a_stream(data):
    assert not is_stream(data)


def test_length_of_a_stream_is_its_len_or_none():
    assert (length_of(Sized()), length_of(Unsized()), length_of(numbers)) == (44, None, None)
    assert (count_samples(DataLoader(Sized(), 5), "train"), count_samples(Plain(), "train")) == (
        44,
        None,
    )


@pytest.mark.parametrize("data", [numbers(), iter([1]), map(abs, [1])])
def test_iterator_that_can_be_read_only_once_is_rejected(data):
    with pytest.raises(DataError, match=r"The val data is a \w+, which has one .*val=lambda: make"):
        dataset_of(data, "val")


def test_stream_that_returns_the_same_iterator_each_time_is_rejected():
    class Same:
        kept = iter([1])

        def __iter__(self):
            return self.kept

    with pytest.raises(DataError, match="The train data is a Same, which has one iterator"):
        dataset_of(Same(), "train")


def test_stream_function_is_called_for_each_epoch():
    assert peek(lambda: iter("abc"), 2) == ["a", "b"]
    assert list(StreamReader(lambda epoch: [epoch] * 2, 0, "train").samples(3)) == [3, 3]


def test_set_epoch_of_a_stream_is_called():
    class Knows(Plain):
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([self.epoch])

    assert list(StreamReader(Knows(), 0, "train").samples(7)) == [7]


def test_stream_that_another_pass_interrupts_keeps_its_epoch():
    class Knows(Plain):
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            for _ in range(4):
                yield self.epoch

    reader = StreamReader(Knows(), 0, "train")
    training = reader.samples(3)
    assert [next(training), *reader.samples(0), *training] == [3, 0, 0, 0, 0, 3, 3, 3]
    passes = [reader.samples(epoch) for epoch in (5, 4, 0)]
    assert [next(one) for one in passes] == [5, 4, 0]
    assert [[*one] for one in reversed(passes)] == [[0, 0, 0], [4, 4, 4], [5, 5, 5]]
    assert [*reader.samples(7)] == [7] * 4
    assert reader.stream.epoch == 7  # those before have ended


def draws(epoch=0, worker=0, workers=1, seed=0):
    def stream():
        for _ in range(4):
            yield float(torch.rand(())), float(np.random.rand()), random.random()

    return list(StreamReader(stream, seed, "train").samples(epoch, worker, workers))


def test_random_numbers_of_the_start_of_a_pass_depend_on_epoch_and_worker():
    def start(epoch=0, worker=0, seed=0, split="train"):
        def stream():
            return iter([float(torch.rand(())) + np.random.rand() + random.random()])

        return next(iter(StreamReader(stream, seed, split).samples(epoch, worker, 2)))

    others = [start(1), start(0, 1), start(seed=1), start(split="val")]
    assert start() == start()
    assert len({start(), *others}) == 5


def test_random_numbers_of_a_streamed_sample_depend_only_on_its_position():
    assert draws() == draws()
    # The positions of a single worker are those of two workers, alternating.
    places = [draws(), draws(epoch=1), draws(seed=1), draws(0, 0, 2), draws(0, 1, 2)]
    assert (
        len({sample for place in places for sample in place}) == 16
    )  # positions 0 and 2 of a single worker are the first two of worker 0 of 2, and so on


def test_seed_of_a_streamed_sample_equals_that_of_map_style_data():
    torch.manual_seed(derive_seed("load", 0, 0, 2, "train"))
    assert float(torch.rand(())) == draws()[2][0]


class Drawing:
    """Samples that are random numbers, and a state: how many were read."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 6:
            self.at += 1
            yield self.at, float(torch.rand(())), float(np.random.rand()), random.random()

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize(("worker", "workers"), [(0, 1), (0, 2), (1, 2), (2, 3)])
@pytest.mark.parametrize("read", [0, 1, 4])
def test_stream_that_resumes_by_its_state_draws_the_same_random_numbers(worker, workers, read):
    reader = StreamReader(Drawing(), 0, "train")
    own = StreamStateTracker(WorkerProgress(read, read, {"at": read}))
    whole, rest = (list(reader.samples(1, worker, workers, own=tracker)) for tracker in (None, own))
    assert len(rest) == 6 - read
    assert rest == whole[read:]


def test_shuffle_buffer_depends_on_seed_and_epoch_and_drops_no_sample():
    def mixed(epoch=0, seed=0, size=10, worker=0):
        return list(StreamReader(range(44), seed, "train", buffer=size).samples(epoch, worker))

    assert sorted(mixed()) == list(range(44))
    assert mixed() == mixed()
    orders = [
        mixed(),
        mixed(epoch=1),
        mixed(seed=1),
        mixed(worker=1),
        mixed(size=100),
        [*range(44)],
    ]
    assert len({tuple(order) for order in orders}) == len(orders)
    assert sorted(mixed(size=100)) == list(range(44))
    assert all(
        place >= value - 9 for place, value in enumerate(mixed())
    )  # at most 9 positions ahead


def test_stream_that_starts_differently_each_time_is_rejected():
    def stream():
        chance = random.Random(os.urandom(8))
        yield from ((chance.random(), "x") for _ in range(3))

    with pytest.raises(DataError, match=r"train stream begins with different samples .*seed=epoch"):
        check_repeats(StreamReader(stream, 0, "train"), "train")


SAMPLES = {
    "tensors": lambda: (torch.ones(2), torch.tensor(1.0, dtype=torch.bfloat16)),
    "arrays": lambda: np.arange(3),
    "dicts": lambda: {"x": [1.5, "text", b"bytes", None], "y": float("nan")},
    "unknown objects": lambda: object(),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_repeatable_stream_is_accepted(kind):
    check_repeats(StreamReader(lambda: (SAMPLES[kind]() for _ in range(3)), 0, "train"), "train")


@pytest.mark.parametrize("kind", ["tensors", "arrays", "dicts"])
def test_differences_between_passes_are_detected_in_any_type(kind):
    count = iter(range(100))

    def stream():
        yield {"a": [SAMPLES[kind](), *([torch.tensor(next(count))])]}

    with pytest.raises(DataError, match="begins with different samples"):
        check_repeats(StreamReader(stream, 0, "train"), "train")


def test_digest_has_names_and_values_but_not_those_of_webdataset():
    samples = [
        {"a": 1},
        {"b": 1},
        {"a": 2},
        {"_a": 1},
        {"_a": 2},
        {"a": None},
        ["a", 1],
        {"a": True},
    ]
    assert len(set(map(digest, samples))) == len(samples)
    assert digest({"a": 1, "__key__": "x/1"}) == digest({"a": 1, "__key__": "y/1"})


def test_probing_a_stream_preserves_the_random_state():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_repeats(StreamReader(lambda: (torch.rand(2) for _ in range(3)), 0, "train"), "train")
    peek(lambda: (torch.rand(2) for _ in range(3)), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_probing_a_stream_reads_a_fixed_number_of_samples():
    count = []
    check_repeats(StreamReader(lambda: (count.append(i) for i in range(1000)), 0, "train"), "train")
    assert len(count) == 2 * PROBED


def test_shards_of_workers_must_differ_and_not_be_empty():
    check_shards([["a", "b"], ["c", "d"]], "train")
    with pytest.raises(DataError, match=r"num_workers=3, but several .* i % info\.num_workers"):
        check_shards([["a", "b"], ["c"], ["a", "b"]], "train")
    with pytest.raises(DataError, match=r"only 1 of them have .* Use data\.num_workers=1"):
        check_shards([["a", "b"], []], "val")


def test_first_samples_of_a_stream_are_map_style_data():
    few = first_samples(Unsized(), 3, "train")
    assert len(few) == 3
    assert torch.equal(few[2][0], X[2])
    loader = first_samples(DataLoader(Sized(), 8, collate_fn=list), 50, "train")
    assert (len(loader.dataset), loader.batch_size, loader.collate_fn) == (44, 8, list)


def test_dataloader_over_a_stream_without_batches_is_rejected():
    with pytest.raises(DataError, match=r"batch_size=None.* pass Task\(batched=True\)"):
        tiny.plan({"train": DataLoader(Sized(), batch_size=None)})


@pytest.mark.parametrize(
    "make",
    [
        iter,
        lambda samples: (sample for sample in samples),
        lambda samples: iter(DataLoader(samples, batch_size=None)),
    ],
)
def test_function_that_returns_one_iterator_again_is_rejected(tmp_path, make):
    x, y = tiny.data()
    once = make(list(zip(x, y, strict=True)))
    with pytest.raises(DataError, match=r"returns one \w+ again and again.*make a new one"):
        tiny.prepare(tmp_path / "run", {"val": lambda: once})


def test_iterator_that_begins_again_may_be_returned_again(tmp_path):
    class Resets:
        def __iter__(self):
            self.rest = iter(list(zip(*tiny.data(), strict=True)))
            return self

        def __next__(self):
            return next(self.rest)

    once = Resets()
    with tiny.prepare(tmp_path / "run", {"val": lambda: once}) as session:
        plain = tiny.prepare(tmp_path / "plain", {"val": tiny.data()})
        assert session.evaluate() == plain.evaluate()
        plain.close()
