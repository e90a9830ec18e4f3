"""The checks of streams before training: their first samples, in a separate pass."""

import itertools
import multiprocessing

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from surestep.trainer.review import data_case
from tests import tiny
from tests.trainer.review.test_data import messages, open_data

X, Y = tiny.data(64)
SORTED = Y.sort().values


class Stream(IterableDataset):
    """Yields rows, and records what happens."""

    def __init__(self, x=X, y=Y, act=bool):
        self.x, self.y, self.act = x, y, act
        self.read, self.open = 0, 0

    def __iter__(self):
        self.open += 1
        try:
            for sample in zip(self.x, self.y, strict=False):
                self.read += 1
                self.act()
                yield sample
        finally:
            self.open -= 1


class Endless(IterableDataset):
    """Yields a sample in a millisecond."""

    def __init__(self, clock):
        self.clock = clock

    def __iter__(self):
        for index in itertools.count():
            self.clock.now += 0.001
            yield X[index % 64] + index // 64, Y[index % 64]


@pytest.fixture
def short(monkeypatch):
    """Read at most 60 samples of a split, which is less than a stream of 64 has."""
    monkeypatch.setattr(data_case, "_ROWS", 60)


def test_short_stream_is_read_to_its_end(tmp_path):
    data = open_data(tmp_path, {"train": Stream(), "val": {"small": Stream(X[:9], Y[:9])}})
    assert (data.train.rows, data.train.is_complete) == (list(range(64)), True)
    assert torch.equal(data.train.inputs[0], X)
    assert torch.equal(data.train.labels, Y)
    (small,) = data.others
    assert (small.name, small.count, small.digests) == ("small", 9, data.train.digests[:9])


@pytest.mark.parametrize("amount", ["sample", "all"])
def test_endless_stream_is_read_for_a_while(tmp_path, amount, clock):
    data = open_data(tmp_path, {"train": Endless(clock)}, doctor_check_data=amount)
    assert len(data.train.rows) == pytest.approx(500, abs=2)
    assert (data.train.count, data.train.share, data.train.is_complete) == (None, None, False)


def test_slow_stream_is_read_once(tmp_path, clock):
    def wait():
        clock.now += 0.15

    stream = Stream()
    with tiny.prepare(tmp_path, {"train": stream}, epochs=None, max_steps=1) as session:
        stream.read, stream.act = 0, wait
        data = data_case.read_data(session.loop, session.task, session.plan)
    assert stream.read == len(data.train.rows) == 1


def test_stream_is_closed_and_no_worker_is_left(tmp_path, short):
    stream = Stream()
    options = {"epochs": None, "max_steps": 1, "data": {"num_workers": 1}}
    parts = {"train": stream, "val": DataLoader(Stream(), num_workers=1)}
    with tiny.prepare(tmp_path, parts, **options) as session:
        children = multiprocessing.active_children()
        data = data_case.read_data(session.loop, session.task, session.plan)
        assert len(data.train.rows) == 60
        assert stream.open == 0
        assert multiprocessing.active_children() == children


def test_own_batches_of_a_stream_have_digests(tmp_path):
    batches = Stream(X.split(8), Y.split(8))
    data = open_data(tmp_path, {"train": batches, "batched": True}, batch_size=1)
    assert (len(data.train.digests), data.train.inputs) == (8, None)


def broken():
    yield X[0], Y[0]
    raise ValueError("no such file")


class Numbered(Stream):
    """Draws from a generator that it owns, if it is asked for more than the first samples."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)


class Collate:
    def __init__(self):
        self.generator = torch.Generator()

    def __call__(self, samples):
        return torch.utils.data.default_collate(samples)


@pytest.mark.parametrize(
    "parts",
    [
        {"train": Numbered()},
        {"train": lambda: iter(_NUMBERED)},
        {"train": Stream(), "collate_fn": Collate()},
    ],
    ids=["attribute", "of a function", "collate_fn"],
)
def test_stream_with_a_generator_of_its_own_is_not_read(tmp_path, parts):
    with tiny.prepare(tmp_path, parts, epochs=None, max_steps=1) as session:
        streams = [_NUMBERED, *(part for part in parts.values() if isinstance(part, Stream))]
        before = [stream.read for stream in streams]
        assert data_case.read_data(session.loop, session.task, session.plan) is None
        assert [stream.read for stream in streams] == before


_NUMBERED = Numbered()


class Copied(Numbered):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise NotImplementedError


def test_stream_with_a_state_may_have_one(tmp_path):
    stream = Copied()
    data = open_data(tmp_path, {"train": stream})
    assert (len(data.train.rows), stream.read) == (64, 0)


def test_stream_that_begins_differently_again_is_left_alone(tmp_path):
    generator = torch.Generator()

    def begin_anywhere():
        first = int(torch.randint(len(X), (), generator=generator))
        return zip(X[first:], Y[first:], strict=True)

    parts = {"train": Stream(), "val": {"one": begin_anywhere, "other": Stream()}}
    data = open_data(tmp_path, parts)
    assert [split.name for split in data.others] == ["other"]


def test_stream_that_fails_is_not_checked(tmp_path):
    parts = {"train": (X, Y), "val": lambda: broken()}
    assert open_data(tmp_path, parts).others == ()


WRONG = Y.clone()
WRONG[45] = 7
MISSING = X.clone()
MISSING[43, 1] = torch.nan
LABEL = X.clone()
LABEL[:, 2] = Y
FIRST = {
    "SS505": ({"train": Stream(X, WRONG)}, "1 of 60 samples that were read, such as 45."),
    "SS609": ({"train": Stream(MISSING)}, "1 of 60 samples of the train data that were read have"),
    "SS605": (
        {"train": Stream(), "val": (X[50:], Y[50:])},
        "Samples of the validation data 'val' are also in the training data: of 14 samples that "
        "were read, 10, such as sample 0 there and sample 50 of the training data.",
    ),
    "SS615": ({"train": Stream(LABEL)}, "Column 2 of the inputs is the target"),
}


@pytest.mark.parametrize("code", FIRST)
def test_first_samples_of_a_stream_show_what_is_true_of_them(tmp_path, short, code):
    parts, text = FIRST[code]
    (message,) = messages(code, open_data(tmp_path, parts))
    assert text in message


CONSTANT = X.clone()
CONSTANT[:, 1] = 7.0
SCALES = X * torch.tensor([1e6, 1.0, 1.0, 1.0])
OF_ALL = {
    "SS601": ({"train": Stream(X, SORTED)}, "a stream keeps this order"),
    "SS609": ({"train": Stream(CONSTANT)}, "have one value in all"),
    "SS609 ": ({"train": Stream(SCALES)}, "has a standard deviation of"),
    "SS610": ({"train": Stream(X, torch.ones_like(Y))}, "training targets that were read are 1"),
    "SS605": ({"train": Stream(), "val": (X + 1e-5, Y)}, "is nearly equal to a sample in"),
    "SS605 ": ({"train": Stream(), "val": Stream()}, "has the same 64 samples"),
}


@pytest.mark.parametrize("code", OF_ALL)
def test_what_needs_all_samples_is_reported_only_if_all_were_read(tmp_path, monkeypatch, code):
    parts, text = OF_ALL[code]
    (message,) = messages(code.strip(), open_data(tmp_path / "all", parts))
    assert text in message
    monkeypatch.setattr(data_case, "_ROWS", 60)
    assert text not in "".join(messages(code.strip(), open_data(tmp_path / "first", parts)))


def test_labels_of_a_stream_with_a_shuffle_buffer_are_not_in_order(tmp_path):
    data = open_data(tmp_path, {"train": Stream(X, SORTED)}, doctor_check_data="sample")
    assert messages("SS601", data)
    data.plan.replace(data_shuffle_buffer=64)
    mixed = data_case.DataCase(
        data.task, data.plan.replace(data_shuffle_buffer=64), data.loop, data.train, (), ()
    )
    assert messages("SS601", mixed) == []


class Sized(Stream):
    def __len__(self):
        return 57


def test_length_of_a_stream_shows_a_last_batch_of_one(tmp_path):
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3))
    images = X[:57].reshape(57, 1, 2, 2)
    data = open_data(tmp_path, {"train": Sized(images, Y), "model": model})
    (message,) = messages("SS608", data)
    assert message.startswith("The last batch of an epoch has 1 of 57 samples")


def test_stream_that_is_evaluated_too_is_reported(tmp_path, short):
    stream = Stream()
    (message,) = messages("SS605", open_data(tmp_path, {"train": stream, "val": stream}))
    assert message == "The validation data 'val' has the same samples as the training data."


def test_findings_of_a_stream_are_at_the_end_of_the_resumed_run(tmp_path, monkeypatch):
    parts, options = (
        {"train": Stream(), "test": Stream(X + 1, WRONG)},
        {"epochs": None, "max_steps": 9},
    )
    with tiny.prepare(tmp_path, parts, **options) as session:
        next(iter(session.steps()))
        session.save()
    with monkeypatch.context() as patch:
        patch.setattr("surestep.trainer.review.findings.read_data", None)  # is not called
        run = tiny.fit(tmp_path, parts, **options)
    assert [found["rule"] for found in run.status["findings"]] == ["SS505"]
    tiny.prepare(tmp_path / "b", parts, **options).close()
    parts["test"] = Stream(X + 1, Y)
    assert tiny.fit(tmp_path / "b", parts, **options).status["findings"] == []
