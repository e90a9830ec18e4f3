"""The checks of the data before training: what they read, and how long they take."""

from importlib import import_module
from itertools import pairwise

import pytest
import torch
from torch.utils.data import Dataset

from surestep.trainer.review import data_case, of_data
from surestep.trainer.review.data_case import read_data, spread_indices
from tests import tiny

X, Y = tiny.data(64)


class Rows(Dataset):
    """Counts the samples that are read, each of which may take a while."""

    def __init__(self, count=64, seconds=0.0, clock=None):
        self.count, self.seconds, self.clock, self.reads = count, seconds, clock, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.reads.append(index)
        if self.clock is not None:
            self.clock.now += self.seconds
        return X[index % 64] + index // 64, Y[index % 64]


def open_data(tmp_path, parts, *, batch_size=8, **doctor):
    """Return what is read of the data of a run."""
    options = {"epochs": None, "max_steps": 3, "doctor": {"check_data": "off"}}
    options["batch_size"] = batch_size
    with tiny.prepare(tmp_path, parts, **options) as session:
        plan = session.plan.replace(**{"doctor_check_data": "sample", **doctor})
        return read_data(session.loop, session.task, plan)


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000, 1597])
def test_indices_are_spread_and_none_comes_twice(count):
    every = spread_indices(count, count)
    assert sorted(every) == list(range(count))
    few = sorted(spread_indices(count, max(1, count // 8)))
    gaps = [after - before for before, after in pairwise(few)]
    assert max(gaps, default=0) <= 32


def test_samples_are_read_with_their_indices(tmp_path):
    data = open_data(tmp_path, {"train": Rows(), "val": {"small": (X[:9], Y[:9])}})
    assert data.train.rows == list(range(64))
    assert torch.equal(data.train.inputs[0], X)
    assert torch.equal(data.train.labels, Y)
    (small,) = data.others
    assert (small.name, small.count, small.is_complete) == ("small", 9, True)
    assert small.digests == data.train.digests[:9]


def messages(code, data):
    return [
        problem.message
        for problem in import_module(f"{of_data.__name__}.{code.lower()}").find(data)
    ]


@pytest.mark.parametrize(
    ("excluded", "counts"),
    [(None, (2, 6)), (list(range(35, 40)), (1, 2)), (list(range(21, 40)), None)],
)
def test_groups_in_both_sets_are_counted_without_excluded_samples(tmp_path, excluded, counts):
    groups = {"train": [index // 7 for index in range(40)], "val": [5] * 4 + [3] * 2 + [9] * 18}
    parts = {"train": (X[:40], Y[:40]), "val": (X[40:], Y[40:]), "groups": groups}
    with tiny.prepare(tmp_path / "run", parts, exclude_samples=excluded) as session:
        found = messages("SS605", read_data(session.loop, session.task, session.plan))
    assert len(found) == (counts is not None)
    for message in found:
        assert message.startswith(f"{counts[0]} of the 3 groups of the validation data 'val'")
        assert f": {counts[1]} of its 24 samples." in message


@pytest.mark.parametrize(("copied", "share"), [(2, "50%"), (4, "100%"), (16, "100%")])
def test_share_of_duplicates_is_scaled_up_to_at_most_all_samples(
    tmp_path, monkeypatch, copied, share
):
    """A quarter of the training data is read, so that four times as many are estimated."""
    monkeypatch.setattr(data_case, "_ROWS", 16)
    x = torch.cat([X[spread_indices(64, copied)], X[copied:16] + 100])
    data = open_data(tmp_path, {"train": (X, Y), "val": (x, Y[:16])})
    (message,) = messages("SS605", data)
    assert message.startswith(f"About {share} of the validation data 'val' is also in")
    assert f"of 16 samples that were read, {copied}, such as" in message


def test_excluded_samples_are_no_part_of_the_training_data_of_checks(tmp_path):
    x = X.clone()
    x[:, 2] = 7.0
    parts = {"train": (x, Y), "val": (torch.cat([x[:10], x[:30] + 100]), Y[:40])}
    with tiny.prepare(tmp_path, parts, exclude_samples=list(range(2, 12))) as session:
        data = read_data(session.loop, session.task, session.plan)
    assert (data.train.is_complete, data.train.share) == (True, 1.0)
    (message,) = messages("SS605", data)
    assert message.startswith("About 5% of the validation data 'val' is also in")  # 2 of 40
    found = messages("SS609", data)
    assert found == ["1 of 4 columns of the inputs have one value in all 54 samples: 2."]


def test_samples_from_before_the_last_one_to_train_on_are_counted(tmp_path):
    parts = {"train": (X[:10], Y[:10]), "val": (X[10:14], Y[10:14])}
    times = {"train": [1, 5, *[2] * 8], "val": [5, 4, 6, 1]}
    (message,) = messages("SS606", open_data(tmp_path, {**parts, "times": times}))
    assert message.startswith("2 of 4 samples of the validation data 'val' are from before")
    assert message.endswith("the last sample of the training data, 5.")


def test_excluded_samples_are_not_read(tmp_path):
    with tiny.prepare(tmp_path, {"train": (X, Y)}, exclude_samples=[3, 5]) as session:
        data = read_data(session.loop, session.task, session.plan)
    assert len(data.train.rows) == 62
    assert not {3, 5} & set(data.train.rows)


def test_large_dataset_is_sampled_in_little_time(tmp_path, clock):
    train, val = Rows(10**6, 0.001, clock), Rows(10**5, 0.001, clock)
    data = open_data(tmp_path, {"train": train, "val": val})
    assert len(data.train.rows) == pytest.approx(500, abs=2)  # half a second
    assert max(data.train.rows) > 9e5
    assert 0 < data.train.share < 2e-3


def test_slow_dataset_is_read_once(tmp_path, clock):
    rows = Rows(seconds=0.15, clock=clock)
    with tiny.prepare(tmp_path, {"train": rows}, doctor={"check_data": "off"}) as session:
        before = len(rows.reads)
        plan = session.plan.replace(doctor_check_data="sample")
        data = read_data(session.loop, session.task, plan)
    assert len(rows.reads) - before == len(data.train.rows) == 1


def test_all_samples_are_read_on_demand(tmp_path):
    data = open_data(tmp_path, {"train": Rows(640)}, doctor_check_data="all")
    assert data.train.is_complete


def test_only_so_many_samples_are_read_unless_all_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(data_case, "_ROWS", 16)
    parts = {"train": Rows(), "val": {"few": Rows(9), "in memory": (X, Y)}}
    data = open_data(tmp_path / "sample", parts)
    assert (len(data.train.rows), max(data.train.rows) > 48) == (16, True)
    assert [len(each.rows) for each in data.others] == [9, 16]
    data = open_data(tmp_path / "all", parts, doctor_check_data="all")
    assert [len(each.rows) for each in (data.train, *data.others)] == [64, 9, 64]


class Broken(Rows):
    def __getitem__(self, index):
        if index == 40:
            raise ValueError("no such file")
        return X[index], Y[index]


def test_data_that_cannot_be_read_is_not_checked(tmp_path):
    assert open_data(tmp_path, {"train": Broken()}) is None


def test_objects_that_are_not_tensors_have_no_digest(tmp_path):
    class Words(Rows):
        def __getitem__(self, index):
            return ["a"] * index, Y[index]

    parts = {
        "train": Words(),
        "collate_fn": lambda rows: (
            torch.tensor([[float(len(words))] * 4 for words, _ in rows]),
            torch.stack([label for _, label in rows]),
        ),
    }
    data = open_data(tmp_path, parts)
    assert len(data.train.digests) == 64  # the collate function made tensors of them
    assert data.train.features.shape == (64, 4)
