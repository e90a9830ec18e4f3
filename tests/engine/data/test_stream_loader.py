import os
from functools import cache

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from surestep.base.errors import ConfigError, DataError
from surestep.engine.data.stream import digest_ends
from surestep.engine.data.stream_loader import checkpoint_state, describe_resume
from surestep.engine.data.stream_state import STREAM, StreamCheckpoint, WorkerProgress
from surestep.engine.state.state import Progress
from tests import tiny
from tests.engine.data.streams import Noisy, Shared, Sized, Uneven, Unsized, X, Y, of_class


def loader_of(train, **said):
    said = {"max_steps": 10, "batch_size": 9, "micro_batch_size": 5, **said}
    parts = {"train": train, "loss": lambda o, t: o.mean()}
    return tiny.train_loader(parts, **said)


def batches(train, epoch=0, start=0, **said):
    loader = loader_of(train, **said)
    try:
        return list(loader.batches(epoch, start))
    finally:
        loader.close()


def inputs_of(found):
    return torch.cat([micro.args[0] for batch in found for micro in batch.micro_batches])


def by_workers(workers, **said):
    return {"data": {"num_workers": workers, **said}}


def places(found):
    return [(b.position, b.end, b.samples, b.ends_epoch) for b in found]


def test_stream_is_split_into_batches_like_map_style_data():
    found = batches(Unsized())
    placed = batches((X, Y), data={"shuffle": False})
    assert torch.equal(inputs_of(found), inputs_of(placed))
    assert places(found) == places(placed)
    assert [[m.samples for m in b.micro_batches] for b in found] == [[5, 4]] * 4 + [[5, 3]]
    assert [[m.position for m in b.micro_batches] for b in found][1] == [9, 14]


def test_full_last_batch_of_a_stream_is_marked_as_the_last():
    found = batches(of_class(Unsized, samples=18))
    assert places(found) == [(0, 9, 9, False), (9, 18, 9, True)]


def test_drop_last_drops_the_smaller_last_batch_of_a_stream():
    found = batches(Unsized(), data={"drop_last": True})
    assert places(found)[-1] == (27, 36, 9, True)
    assert len(batches(of_class(Unsized, samples=9), data={"drop_last": True})) == 1
    with pytest.raises(DataError, match=r"drop_last drops every batch: 44 .* batch_size=50"):
        batches(Unsized(), batch_size=50, data={"drop_last": True})


def noisy_from(place, workers):
    return batches(Noisy(), 1, place, **by_workers(workers, shuffle_buffer=7))


@cache
def whole_noisy(workers):
    return noisy_from(0, workers)


@pytest.mark.parametrize("start", [0, 9, 27, 36, 44])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_resuming_at_a_position_gives_the_same_batches(start, workers):
    whole, rest = whole_noisy(workers), noisy_from(start, workers)
    assert places(rest) == [each for each in places(whole) if each[0] >= start]
    if rest:
        assert torch.equal(inputs_of(rest), inputs_of(whole)[start:])


def test_one_worker_gives_the_same_batches_as_no_worker():
    none, one = (batches(Noisy(), 2, **by_workers(workers)) for workers in (0, 1))
    assert torch.equal(inputs_of(none), inputs_of(one))


@pytest.mark.parametrize("kind", [Shared, Uneven])
@pytest.mark.parametrize("workers", [2])
def test_workers_give_every_sample_once_in_full_batches(kind, workers):
    found = batches(kind(), **by_workers(workers))
    assert places(found) == places(batches(kind()))
    assert sorted(inputs_of(found).tolist()) == sorted(X.tolist())


def test_workers_alternate_and_their_incomplete_batches_come_last():
    first, second = list(range(30)), list(range(30, 44))
    order = [*first[:9], *second[:9], *first[9:27], *first[27:], *second[9:]]
    assert torch.equal(inputs_of(batches(Uneven(), **by_workers(2))), X[order])


def test_persistent_workers_get_the_epoch():
    loader = loader_of(Noisy(), **by_workers(2))
    one, two, one_again = (inputs_of(loader.batches(epoch)) for epoch in (1, 2, 1))
    loader.close()
    assert not torch.equal(one, two)
    assert torch.equal(one, one_again)
    assert torch.equal(two, inputs_of(batches(Noisy(), 2, **by_workers(2))))


class Counted(Shared):
    """Samples with `state_dict`: how many were read."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < self.samples:
            self.at += 1
            yield self.sample(self.at - 1)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 1])
def test_pass_that_begins_earlier_by_a_state_reads_the_same_batches(workers):
    """As a rollback does: persistent workers are alive, and have no state or a later one."""
    loader = loader_of(Counted(), **by_workers(workers))
    whole = list(loader.batches(0))
    assert loader.source.checkpoint_at(0, 18).position == 18
    for start in (18, 9):
        again = list(loader.batches(0, start))
        assert places(again) == places(whole)[start // 9 :]
        assert torch.equal(inputs_of(again), inputs_of(whole)[start:])
    loader.close()


def test_run_resumes_from_the_last_checkpoint_of_the_epoch_that_fits():
    loader = loader_of(Counted())
    source, state = loader.source, tiny.state_of(steps=0)

    def saved(epoch, position, given, read, state, size=9, parts=1):
        part = WorkerProgress(given, read, state, last="x")
        return StreamCheckpoint(epoch, position, size, 0, (part,) * parts)

    source.checkpoints.extend(
        [
            saved(0, 8, 8, 8, {"at": 8}),
            saved(1, 9, 9, 9, {"at": 9}),
            saved(1, 18, 18, 18, {"at": 18}),
            saved(1, 27, 27, 0, None),  # it has only digests
            saved(1, 30, 30, 30, {"at": 30}, size=10),
            saved(1, 36, 18, 18, {"at": 36}, parts=2),
            saved(2, 9, 9, 9, {"at": 9}),
        ]
    )

    def found(epoch, position):
        state.progress = Progress(epoch=epoch, position=position)
        saved = checkpoint_state(source, state)[STREAM].state_dict()
        return saved and (saved["position"], saved["parts"][0]["read"], saved["parts"][0]["state"])

    # The batch before is read again, since no digest of the next one is there to compare with.
    assert found(1, 44) == found(1, 18) == (18, 9, {"at": 9})
    assert found(1, 17) == found(1, 9) == found(2, 9) == (9, 0, None)
    assert found(1, 8) == {}
    state.progress = Progress(epoch=1, position=21)
    plan = tiny.plan({"train": Counted()}, max_steps=2).plan
    assert "own state, reading 12 samples again" in describe_resume(source, plan, state.progress)
    checkpoint_state(source, state)[STREAM].load_state_dict({})
    assert found(1, 44) == {}


class CountedShards(Counted):
    """Shards with `state_dict`, one for each worker."""

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        while (index := workers * self.at + worker) < self.samples:
            self.at += 1
            yield self.sample(index)


def test_pass_that_begins_within_a_round_of_the_workers_continues_with_the_next_of_them():
    loader = loader_of(CountedShards(), **by_workers(2))
    whole = list(loader.batches(0))
    saved = loader.source.checkpoint_at(0, 9)
    assert (saved.position, saved.last) == (9, 0)
    again = list(loader.batches(0, 9))
    loader.close()
    assert places(again) == places(whole)[1:]
    assert torch.equal(inputs_of(again), inputs_of(whole)[9:])


@pytest.mark.parametrize("workers", [0, 1])
def test_pass_that_begins_earlier_by_a_wrong_state_reads_the_same_batches(workers):
    class Wrong(Counted):
        def load_state_dict(self, state):
            self.at = state["at"] + (state["at"] > 12)  # not when it is tried

    loader = loader_of(Wrong(), **by_workers(workers))
    whole = list(loader.batches(0))
    with pytest.warns(UserWarning, match="own state of 18 samples, .* with other samples"):
        again = list(loader.batches(0, 18))
    loader.close()
    assert places(again) == places(whole)[2:]
    assert torch.equal(inputs_of(again), inputs_of(whole)[18:])


def test_abandoned_pass_does_not_affect_the_next():
    loader = loader_of(Shared(), **by_workers(2))
    next(loader.batches(0))
    assert places(loader.batches(0)) == places(batches(Shared()))
    loader.close()


def test_workers_draw_different_random_numbers():
    class Chance(Shared):
        def sample(self, index):
            return torch.rand(tiny.FEATURES), Y[index]

    found = inputs_of(batches(Chance(), **by_workers(2)))
    assert len(found.unique(dim=0)) == 44


def test_workers_that_each_read_the_full_stream_are_rejected():
    with pytest.raises(DataError, match=r"num_workers=2, but several of these workers read the"):
        loader_of(Unsized(), **by_workers(2))
    with pytest.raises(DataError, match=r"num_workers=2, but several of these workers read the"):
        loader_of(DataLoader(Sized(), 9, num_workers=2), batch_size=None)


def test_worker_without_samples_is_rejected():
    class Single(Unsized):
        def __iter__(self):
            info = get_worker_info()
            return iter([]) if info is not None and info.id else super().__iter__()

    with pytest.raises(DataError, match=r"only 1 of them have anything to read in the train"):
        loader_of(Single(), **by_workers(2))


def test_worker_init_fn_can_set_the_shard_of_a_worker():
    def halve(worker):
        dataset = get_worker_info().dataset
        dataset.start, dataset.samples = 22 * worker, 22 * (worker + 1)

    class Range(Unsized):
        start = 0

        def __iter__(self):
            return map(self.sample, range(self.start, self.samples))

    loader = DataLoader(Range(), 9, num_workers=2, worker_init_fn=halve)
    found = batches(loader, batch_size=None)
    assert sorted(inputs_of(found).tolist()) == sorted(X.tolist())


@pytest.mark.parametrize(("says", "message"), [(40, "gives at least 44"), (50, "ended after 44")])
def test_stream_whose_length_differs_from_its_len_is_rejected(says, message):
    class Wrong(Unsized):
        def __len__(self):
            return says

    with pytest.raises(DataError, match=rf"has a __len__ of {says} samples, and .*{message}"):
        batches(Wrong())


def test_stream_shorter_than_the_resumed_position_is_rejected():
    with pytest.raises(DataError, match=r"ended after 20 samples, and this run has read 27 of"):
        batches(of_class(Unsized, samples=20), start=27)
    assert batches(of_class(Unsized, samples=27), start=27) == []


def test_empty_stream_is_rejected_at_the_start():
    empty = of_class(Unsized, samples=0)
    with pytest.raises(DataError, match="The train stream is empty"):
        loader_of(empty)


def test_stream_that_is_empty_in_a_later_epoch_raises_an_error(tmp_path):
    def once(epoch):
        return iter([] if epoch else [(X[0], Y[0])] * 8)

    with pytest.raises(DataError, match="The train stream is empty"):
        tiny.fit(tmp_path, {"train": once}, max_steps=3)


def test_empty_validation_stream_is_rejected_before_training(tmp_path):
    with pytest.raises(DataError, match="The val stream is empty"):
        tiny.prepare(tmp_path, {"val": of_class(Unsized, samples=0)})


def test_loading_a_stream_preserves_the_random_state_of_the_process():
    loader = loader_of(Noisy())
    before, kept = torch.get_rng_state(), []
    for _ in loader.batches(0):
        kept.append(torch.equal(torch.get_rng_state(), before))
    assert kept == [True] * 5


def test_random_numbers_of_the_main_process_do_not_depend_on_a_worker():
    def drawn(workers):
        np.random.seed(3)
        loader = loader_of(Sized(), **by_workers(workers))
        return [np.random.randn() for _ in loader.batches(0)]

    assert drawn(0) == drawn(1)


def test_random_collate_fn_of_a_stream_is_seeded_by_position():
    def collate(samples):
        x, y = torch.utils.data.default_collate(samples)
        return x + torch.rand_like(x), y

    loader = DataLoader(Sized(), 9, collate_fn=collate)
    whole, rest = (batches(loader, 0, start, batch_size=None) for start in (0, 18))
    assert torch.equal(inputs_of(rest), inputs_of(whole)[18:])


class LateNoise:
    """Makes its generator when it collates for the first time."""

    rng = None

    def __call__(self, samples):
        if self.rng is None:
            self.rng = np.random.default_rng()
        x, y = torch.utils.data.default_collate(samples)
        return x + self.rng.normal(), y


def test_generator_that_a_collate_function_makes_late_is_seeded_by_position():
    def read(start):
        parts = {
            "train": Sized(),
            "loss": lambda outputs, _: outputs.mean(),
            "collate_fn": LateNoise(),
        }
        loader = tiny.train_loader(parts, max_steps=10, batch_size=9)
        return inputs_of(loader.batches(0, start))

    whole = read(0)
    assert torch.equal(whole, read(0))
    assert torch.equal(whole[18:], read(18))


def test_settings_of_a_dataloader_over_a_stream_are_used():
    loader = loader_of(DataLoader(Sized(), 7, drop_last=True), batch_size=None)
    assert (loader.layout.batch_size, loader.layout.drop_last) == (7, True)
    with pytest.raises(
        ConfigError, match=r"batch_size=9, but .* is a DataLoader with batch_size=7"
    ):
        loader_of(DataLoader(Sized(), 7))


def test_evaluation_of_a_stream_uses_at_most_one_worker(tmp_path):
    class Where(Sized):
        def sample(self, index):
            return X[index], torch.tensor(os.getpid() if get_worker_info() else 0)

    pids = []

    def pid(outputs, targets):
        pids.extend(targets.tolist())
        return outputs.mean()

    def loss(outputs, targets):
        return outputs.mean()

    parts = {"train": Shared(), "val": Where(), "loss": loss, "metrics": {"pid": pid}}
    metric = {"metric": "loss"}
    with tiny.prepare(tmp_path, parts, validation=metric, **by_workers(2)) as session:
        pids.clear()
        session.evaluate("val")
    assert len(set(pids)) == 1
    assert pids[0] != 0


class Opaque:
    """An object of which nothing is known."""


def test_digest_of_the_ends_of_a_sample_is_none_if_nothing_can_be_compared():
    assert digest_ends(({"a": Opaque()}, [Opaque()]), 8) is None
    assert digest_ends({"a": (Opaque(), None)}, 8) is not None


def test_digest_of_the_ends_of_a_sample_changes_with_its_first_and_last_bytes():
    found = set()
    for index in (None, 0, 99):
        x = torch.zeros(100)
        if index is not None:
            x[index] = 1.0
        found |= {digest_ends((x, "a"), 8), digest_ends({"x": x.numpy()}, 8)}
    assert len(found) == 6
