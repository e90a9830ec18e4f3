"""Law 2 for streams: stopped and resumed equals uninterrupted, bit for bit.

A stream has no positions: the samples seen in the epoch are read again with the same seeds.
Streams with `state_dict` are in test_law_2_stream_states.py.
"""

import random
import time

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from surestep.base.errors import DataError, RunError
from surestep.engine.data import stream
from surestep.engine.data import stream_loader as passes
from tests.laws.support.tasks import Augmented, rows, session_of
from tests.laws.test_law_2_resuming import OPTIONS, check_resume, task_of, whole


class Stream(IterableDataset):
    """Samples with noise from three generators; each worker reads its own part."""

    def __init__(self, samples=44):
        self.data = Augmented(samples)

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(worker, len(self.data), workers):
            yield self.data[index]


class Shuffled(Stream):
    """Shuffles by the epoch, and swaps neighbours at random."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(range(44))
        random.Random(self.epoch).shuffle(order)
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        waiting, *rest = order[worker::workers]
        for index in rest:
            if random.random() < 0.5:
                waiting, index = index, waiting
            yield self.data[index]
        yield self.data[waiting]


def collate(samples):
    x, y = torch.utils.data.default_collate(samples)
    return x + 0.1 * torch.randn_like(x), y


STREAMS = {
    "a stream": Stream,
    "a function": lambda: lambda: iter(Stream()),
    "a function of the epoch": lambda: _of_epoch,
    "shuffled by epoch": Shuffled,
    "a loader": lambda: DataLoader(Shuffled(), 9, collate_fn=collate),
    "a loader with two workers": lambda: DataLoader(Shuffled(), 9, num_workers=2),
}


def _of_epoch(epoch):
    stream = Shuffled()
    stream.set_epoch(epoch)
    return iter(stream)


@pytest.mark.parametrize("kind", STREAMS)
def test_stream_resumes_where_it_stopped(folder, kind):
    check_resume(folder, STREAMS[kind], expected=whole(folder, STREAMS[kind]))


@pytest.mark.parametrize("stop_at", [3, 5, 10])
def test_stream_resumes_in_the_first_epoch_and_at_the_end_of_one(folder, stop_at):
    check_resume(folder, Shuffled, stop_at=stop_at, expected=whole(folder, Shuffled))


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_with_a_shuffle_buffer_resumes_with_any_workers(folder, workers, monkeypatch):
    data = {"num_workers": workers, "shuffle_buffer": 10}
    monkeypatch.setitem(OPTIONS, "data", data)
    check_resume(folder, Shuffled)


def test_stream_of_one_worker_resumes_without_workers(folder, monkeypatch):
    monkeypatch.setitem(OPTIONS, "data", {"num_workers": 1})
    check_resume(folder, Shuffled, then={"data": {"num_workers": 0}})


def test_different_number_of_workers_changes_the_order_and_is_rejected(folder):
    run = folder()
    with session_of(task_of(Stream()), run, **OPTIONS) as session:
        next(session.steps())
        session.save()
    more = OPTIONS | {"data": {"num_workers": 2}}
    with pytest.raises(RunError, match=r"data\.num_workers +1 +-> +2"):
        session_of(task_of(Stream()), run, **more)


def test_stream_that_starts_differently_in_a_new_process_is_rejected(folder):
    run = folder()
    data = Stream()
    with session_of(task_of(data), run, **OPTIONS) as session:
        next(session.steps())
        session.save()
    data.data.x[3] += 1
    with pytest.raises(RunError, match=r"first samples +\w+ +-> +\w+"):
        session_of(task_of(data), run, **OPTIONS)


def test_resume_reports_what_is_read_again(folder, capsys):
    run, plain = folder(), {"progress": "plain"}
    with session_of(task_of(Stream()), run, logging=plain, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 8:
                session.save()
                break
    with session_of(task_of(Stream()), run, logging=plain, **OPTIONS):
        pass
    output = capsys.readouterr().err
    assert (
        "from step 8, epoch 2, reading 27 samples of the stream again: it has no state_dict() and "
        "load_state_dict()." in output
    )


def test_map_dataset_reads_no_sample_again(folder, capsys):
    run, plain = folder(), {"progress": "plain"}
    for _ in range(2):
        with session_of(task_of(rows(44)), run, logging=plain, **OPTIONS) as session:
            next(session.steps())
            session.save()
    assert "from step 1, epoch 1.\n" in capsys.readouterr().err


def seed_by_clock(patch):
    own = stream._shuffled
    patch.setattr(
        stream, "_shuffled", lambda samples, size, _: own(samples, size, time.monotonic_ns())
    )


def restart_stream(patch):
    own = passes.StreamLoader._batches
    patch.setattr(passes.StreamLoader, "_batches", lambda self, epoch, _: own(self, epoch, 0))


def unseeded(patch):
    patch.setattr(stream.StreamReader, "seed_position", lambda *_: None)


@pytest.mark.parametrize("mutate", [seed_by_clock, restart_stream, unseeded])
def test_check_fails_if_the_law_is_broken(folder, monkeypatch, mutate):
    mutate(monkeypatch)
    monkeypatch.setitem(OPTIONS, "data", {"shuffle_buffer": 10})
    with pytest.raises((AssertionError, DataError)):
        check_resume(folder, Shuffled)


class Drifting(IterableDataset):
    """Gives the same first samples, and others after them in each process."""

    def __init__(self, shift):
        self.shift = shift

    def __iter__(self):
        data = Augmented(44)
        for index in range(44):
            yield data[index if index < 20 else (index + self.shift - 20) % 24 + 20]


def test_stream_that_gives_other_samples_than_before_is_an_error(folder):
    run = folder()
    with session_of(task_of(Drifting(0)), run, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 8:
                session.save()
                break
    message = r"stream gives other samples before or at position 27 of epoch 2 than this run read"
    with (
        session_of(task_of(Drifting(1)), run, **OPTIONS) as session,
        pytest.raises(DataError, match=message),
    ):
        next(session.steps())
