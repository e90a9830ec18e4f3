"""Law 2 for streams with `state_dict`: resumed by it equals uninterrupted, bit for bit.

No sample is read again, or with several workers the last batch of some, to compare it.
"""

import random
import re
import threading

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from surestep.base.errors import DataError
from surestep.engine.data import stream_loader as passes
from surestep.engine.data import stream_state as own_state
from tests.laws.support.tasks import Augmented, session_of, train
from tests.laws.test_law_2_resuming import OPTIONS, check_resume, task_of, whole
from tests.needs import needs

READ = torch.zeros(
    44, dtype=torch.int64
).share_memory_()  # reads of each sample, over all processes
ALWAYS = float("inf")


@pytest.fixture(autouse=True)
def take_every_state(monkeypatch):
    """Keep a pause of the machine from making a state look expensive."""
    monkeypatch.setattr(own_state, "CHEAP_S", ALWAYS)


class Counted(IterableDataset):
    """Noisy samples in a new order each epoch, split over workers, with `state_dict`."""

    def __init__(self):
        self.data, self.at, self.epoch = Augmented(44), 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        order = list(range(44))
        random.Random(self.epoch).shuffle(order)
        mine = order[worker::workers]
        while self.at < len(mine):  # starts from scratch only in a new instance
            index = mine[self.at]
            self.at += 1
            READ[index] += 1
            yield self.data[index]

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


class Uneven(Counted):
    """The first worker has 30 samples, the second 14; a single worker has all."""

    def __iter__(self):
        info = get_worker_info()
        part = [range(44), range(30), range(30, 44)][0 if info is None else 1 + info.id]
        while self.at < len(part):
            self.at += 1
            READ[part[self.at - 1]] += 1
            yield self.data[part[self.at - 1]]


class Iterated(IterableDataset):
    """Its iterators hold the state."""

    def __init__(self):
        self.data = Augmented(44)

    def __iter__(self):
        return Samples(self.data)


class Samples:
    def __init__(self, data):
        self.data, self.at = data, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 44:
            raise StopIteration
        self.at += 1
        READ[self.at - 1] += 1
        return self.data[self.at - 1]

    state_dict = Counted.state_dict
    epoch = 0

    def load_state_dict(self, state):
        self.at = state["at"]


class Remembering(Counted):
    """A state that JSON cannot represent."""

    def __init__(self):
        super().__init__()
        self.rng, self.seen = random.Random(3), torch.zeros(44, dtype=torch.bool)

    def __iter__(self):
        for sample, label in super().__iter__():
            self.seen[self.at - 1] = True
            yield sample + self.rng.random() + self.seen.sum(), label

    def state_dict(self):
        return super().state_dict() | {"rng": self.rng.getstate(), "seen": self.seen}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.rng.setstate(state["rng"])
        self.seen = state["seen"]


STREAMS = {
    "its own": Counted,
    "its iterator's": Iterated,
    "of what a function makes": lambda: lambda: Counted(),
    "with tuples and tensors": Remembering,
}


def check_own_state(folder, make=Counted, *, stop_at=9, then=None, **more):
    """Compare with one uninterrupted run of each stream; return the resumed session."""
    expected = whole(folder, make, **more)
    return check_resume(folder, make, stop_at=stop_at, then=then, expected=expected, **more)


def check_with_output(folder, capsys, make, **more):
    """Check, and return what is printed, and the plan of the resumed run."""
    session = check_own_state(folder, make, logging={"progress": "plain"}, **more)
    return capsys.readouterr().err, session.plan


@pytest.mark.parametrize("kind", STREAMS)
def test_stream_resumes_from_its_state(folder, kind):
    check_own_state(folder, STREAMS[kind])


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("stop_at", [3, 5, 6])
def test_stream_resumes_at_any_step_with_any_workers(folder, workers, stop_at):
    check_own_state(folder, stop_at=stop_at, data={"num_workers": workers})


@pytest.mark.parametrize("stop_at", [2, 3, 4])
def test_stream_resumes_after_one_worker_has_ended(folder, stop_at):
    check_own_state(folder, Uneven, stop_at=stop_at, data={"num_workers": 2})


def test_stream_of_one_worker_resumes_without_workers(folder):
    check_own_state(folder, data={"num_workers": 1}, then={"data": {"num_workers": 0}})


def reads_of_a_resume(folder, make, stop_at, **more):
    """Return how often the rest of the second epoch reads each sample, and the events."""
    run, options = folder(), {**OPTIONS, "max_steps": 10, **more}
    with session_of(task_of(make()), run, **options) as session:
        for result in session.steps():
            if result.step == stop_at:
                session.save()
                break
    with session_of(task_of(make()), run, **options) as session:
        READ.zero_()  # what the first checks read
        assert len(list(session.steps())) == 10 - stop_at
    return READ.clone()


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("workers", [0, 1])
def test_no_sample_is_read_again(folder, kind, workers):
    reads = reads_of_a_resume(folder, STREAMS[kind], 7, data={"num_workers": workers})
    assert reads.sum() == 44 - 2 * 9
    assert reads.max() == 1


def test_two_workers_read_only_the_batch_again_after_which_nothing_was_read(folder):
    # Each worker has 22 samples: two batches, of which the run has used one.
    reads = reads_of_a_resume(folder, Counted, 7, data={"num_workers": 2})
    assert (reads.sum(), reads.max()) == (44 - 9, 1)


def test_session_entered_again_reads_no_sample_again(folder):
    with session_of(task_of(Counted()), folder(), **OPTIONS) as session:
        for result in session.steps():
            if result.step == 7:
                break
        READ.zero_()
        assert [result.step for result in session.steps()] == list(range(8, 15))
        assert READ.sum() == 44 - 2 * 9 + 44  # and the next epoch, of which one batch is prefetched


def test_evaluating_on_the_same_stream_changes_nothing(folder):
    run, data = folder(), Counted()
    whole = train(task_of(data), folder(), **OPTIONS)
    with session_of(task_of(data), run, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 7:
                session.evaluate("train")
                session.save()
                break
    again = train(task_of(data, other_weights=True), run, **OPTIONS)
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_expensive_state_is_taken_rarely_and_the_rest_is_read_again(folder, monkeypatch):
    monkeypatch.setattr(own_state, "CHEAP_S", 0.0)
    monkeypatch.setattr(own_state, "SHARE", 1e9)  # the first four, then never
    check_own_state(folder, stop_at=5)
    reads = reads_of_a_resume(folder, Counted, 5)
    assert reads.sum() == 44


def resume_output(folder, capsys, make, **more):
    run, options = folder(), {**OPTIONS, "logging": {"progress": "plain"}, **more}
    for _ in range(2):
        with session_of(task_of(make()), run, **options) as session:
            for result in session.steps():
                if result.step == 3:
                    session.save()
                    break
    return capsys.readouterr().err, session.plan


def test_resume_by_state_is_reported(folder, capsys):
    output, plan = resume_output(folder, capsys, Counted)
    assert "from step 3, epoch 1, the stream by its own state.\n" in output
    assert plan.data_resume == "by its own state"


class Lying(Counted):
    def load_state_dict(self, state):
        self.at = state["at"] + 1


class Buffering(Counted):
    """Buffers samples that its state does not hold."""

    def __iter__(self):
        waiting = []
        for sample in super().__iter__():
            waiting.append(sample)
            if len(waiting) > 4:
                yield waiting.pop(1)
        yield from waiting


class Odd(Counted):
    def state_dict(self):
        return {"at": self.at, "what": {1, 2}}


class Broken(Counted):
    def load_state_dict(self, state):
        raise OSError("gone")


class Locked(Counted):
    """Cannot be copied, because it holds a lock."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def __iter__(self):
        self.at = 0
        return super().__iter__()


class Stale(Counted):
    """Reports the state that it began with once a state was loaded."""

    stale = None

    def state_dict(self):
        return super().state_dict() if self.stale is None else self.stale

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.stale = {"at": 0, "epoch": self.epoch}


CANNOT = {
    Lying: "after loading its state of 8 samples, Lying continues with others",
    Buffering: "after loading its state of 8 samples, Buffering continues with others",
    Odd: "state_dict() of Odd failed: TypeError('a set has no form in JSON or safetensors')",
    Broken: "load_state_dict() of Broken failed: OSError('gone')",
    Stale: (
        "Stale continues with others after loading a state that it saved after loading its state "
        "of 8 samples"
    ),
    Locked: "copying it, since a state is loaded into a copy, failed: TypeError",
}


@pytest.mark.parametrize("kind", CANNOT)
def test_unusable_state_is_reported_and_the_stream_read_again(folder, capsys, kind):
    output, plan = check_with_output(folder, capsys, kind)
    assert f"reading 36 samples of the stream again: {CANNOT[kind]}" in output
    assert plan.data_resume == "by reading again"
    assert plan.reason("data.resume").startswith(CANNOT[kind])


class LyingLate(Counted):
    """Loads a wrong position, but not of the first samples, which are tried before the run."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.at += self.at > 12


class StaleLate(Stale):
    """Is stale if a state of later samples was loaded."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.at < 13:
            self.stale = None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stop_at", [7, 8])
def test_state_that_is_wrong_later_is_noticed_and_the_stream_read_again(folder, workers, stop_at):
    with pytest.warns(UserWarning, match=r"own state of (18|27) samples, .* with other samples"):
        check_own_state(folder, LyingLate, stop_at=stop_at, data={"num_workers": workers})


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize(("workers", "stop_at"), [(2, 8), (2, 9), (3, 6)])
def test_wrong_states_of_several_workers_are_noticed(folder, workers, stop_at):
    class WrongInTheSecond(Counted):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            info = get_worker_info()
            self.at += self.at > 3 and info is not None and info.id == 1

    options = {"batch_size": 4, "micro_batch_size": 4, "data": {"num_workers": workers}}
    with pytest.warns(UserWarning, match=r"own state of \d+ samples, .* with other samples"):
        check_own_state(folder, WrongInTheSecond, stop_at=stop_at, **options)


@pytest.mark.filterwarnings("ignore:After loading its own state")
@pytest.mark.parametrize("workers", [0, 1])
def test_second_resume_from_a_state_that_is_stale_by_then_changes_nothing(folder, workers):
    options = {**OPTIONS, "data": {"num_workers": workers}}
    whole, run = train(task_of(StaleLate()), folder(), **options), folder()
    for stop_at in (7, 8, 14):
        with session_of(task_of(StaleLate(), other_weights=stop_at > 7), run, **options) as session:
            for result in session.steps():
                if result.step == stop_at:
                    session.save()
                    break
    for a, b in zip(whole.model.parameters(), session.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_state_without_digests_is_used_and_reported_as_unchecked(folder, capsys, monkeypatch):
    monkeypatch.setattr(passes._StreamWorker, "_digest", lambda *_: None)  # as before digests
    output, _ = resume_output(folder, capsys, Counted)
    assert "by its own state (not compared with what was read before: the checkpoint has" in output


def test_stream_with_a_shuffle_buffer_is_read_again(folder, capsys):
    output, _ = resume_output(folder, capsys, Counted, data={"shuffle_buffer": 10})
    assert "again: the samples in data.shuffle_buffer are not in the stream's state" in output


@pytest.mark.slow("needs datasets")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mixed", [False, True])
def test_hugging_face(folder, workers, mixed, capsys):
    datasets = needs("datasets")
    x, y = Augmented(44).x, Augmented(44).y

    def make():
        data = datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist()})
        stream = data.to_iterable_dataset(num_shards=4).with_format("torch")
        return stream.shuffle(seed=3, buffer_size=10) if mixed else stream

    def pairs(samples):
        return torch.stack([sample["x"] for sample in samples]), torch.stack(
            [sample["label"] for sample in samples]
        )

    def stream():
        return torch.utils.data.DataLoader(make(), 9, collate_fn=pairs, num_workers=workers)

    output, plan = check_with_output(folder, capsys, stream, stop_at=8)
    if mixed:  # "examples from shuffle buffers are lost when resuming", its documentation says
        assert "continues with others" in plan.reason("data.resume")
    else:
        again = ", reading 9 samples again" if workers == 2 else ""
        assert f"the stream by its own state{again}.\n" in output


def take_state_after_prefetch(patch):
    patch.setattr(
        passes._StreamCheckpointState,
        "state_dict",
        lambda self: (
            self.stream.checkpoints[-1]
            ._replace(position=self.state.progress.position, epoch=self.state.progress.epoch)
            .as_json()
        ),
    )


def restart_numbering(patch):
    own = own_state.StreamStateTracker.start

    def begin(self, stream, epoch, **more):
        found = own(self, stream, epoch, **more)
        self.read = 0
        return found

    patch.setattr(own_state.StreamStateTracker, "start", begin)


def skip_loading(patch):
    patch.setattr(
        own_state.StreamStateTracker, "_own", lambda self, owner: setattr(self, "owner", owner)
    )


def forget_worker_order(patch):
    def begin(self, epoch, start):
        mark = own(self, epoch, start)
        if self._pass.checkpoint is not None:
            self._pass.checkpoint = self._pass.checkpoint._replace(last=-1)
        return mark

    own = passes.StreamLoader._begin
    patch.setattr(passes.StreamLoader, "_begin", begin)


@pytest.mark.parametrize(
    ("mutate", "workers"),
    [
        (take_state_after_prefetch, 0),
        (restart_numbering, 0),
        (skip_loading, 0),
        (forget_worker_order, 2),
    ],
)
def test_check_fails_if_the_law_is_broken(folder, monkeypatch, mutate, workers):
    mutate(monkeypatch)
    monkeypatch.setattr("surestep.trainer.planning.find_state_problem", lambda _: "")
    monkeypatch.setattr(passes, "_differs", lambda *_: False)  # else the stream is read again
    options = {"batch_size": 4, "micro_batch_size": 4, "data": {"num_workers": workers}}
    with pytest.raises((AssertionError, DataError)):
        check_resume(folder, Counted, stop_at=3, **options)


def nodes_of(sample, *, threads=False):
    """Build nodes over samples, with prefetching threads if asked."""
    nodes = needs("torchdata.nodes")

    def read(index):
        READ[index] += 1
        return sample(index)

    def make():
        order = nodes.IterableWrapper(range(44))
        if not threads:
            return nodes.Loader(nodes.Mapper(order, read))
        mapped = nodes.ParallelMapper(order, read, num_workers=2, method="thread")
        return nodes.Loader(nodes.Prefetcher(mapped, prefetch_factor=2))

    return make


def stored(index):
    data = Augmented(44)
    return data.x[index], data.y[index]


def stateful_loader(workers):
    loader = needs("torchdata.stateful_dataloader").StatefulDataLoader
    return loader(Counted(), 9, num_workers=workers)


OF_TORCHDATA = {
    "nodes": lambda: nodes_of(stored),
    "nodes with threads": lambda: nodes_of(stored, threads=True),
    "a loader": lambda: stateful_loader(0),
    "a loader with workers": lambda: stateful_loader(2),
}
OF_ITS_OWN = [
    pytest.mark.slow("needs torchdata"),
    # StatefulDataLoader calls a function of torch that is deprecated.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    # torchdata's threads, released before they start.
    pytest.mark.filterwarnings("ignore:Exception ignored in.*_ParallelMapperIter"),
]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=OF_ITS_OWN) for kind in OF_TORCHDATA])
def test_torchdata_resumes_within_an_epoch(folder, kind, capsys):
    output, plan = check_with_output(folder, capsys, OF_TORCHDATA[kind], stop_at=8)
    again = r", reading \d+ samples again" if kind == "a loader with workers" else ""
    assert re.search(rf"the stream by its own state{again}\.\n", output)
    assert plan.data_resume == "by its own state"


@pytest.mark.slow("needs torchdata")
def test_torchdata_nodes_that_draw_are_read_again(folder, capsys):
    # On resume torchdata reads one sample ahead, before its position is seeded.
    def make():
        return nodes_of(Augmented(44).__getitem__)

    _, plan = check_with_output(folder, capsys, make, stop_at=8)
    assert "Loader continues with others" in plan.reason("data.resume")
