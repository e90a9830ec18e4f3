"""`prove_data` finds the faults of datasets, DataLoaders and samplers, without a model."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

import surestep
from surestep.base.errors import ConfigError, TaskError
from surestep.laws.data import DataProgram
from surestep.laws.prove_data import Positions
from tests import tiny

pytestmark = pytest.mark.slow("reads data in several processes")
ROWS = ("same again", "order", "workers", "resuming", "shares")


class Rows(Dataset):
    """Random rows, drawn by the generators that loading seeds."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.rand(2) + index + random.random(), index


class Counting(Rows):
    """Rows that depend on how many a process has read."""

    read = 0

    def __getitem__(self, index):
        self.read += 1
        return torch.tensor([float(index + self.read)]), index


class Unseeded(Rows):
    """Rows that the system draws when the dataset is made."""

    def __init__(self):
        self.shift = random.SystemRandom().random()

    def __getitem__(self, index):
        return torch.tensor([self.shift]), index


class Twice(Sampler):
    """Yields the first sample again in place of the last."""

    def __iter__(self):
        return iter([*range(19), 0])

    def __len__(self):
        return 20


class Stream(IterableDataset):
    """A stream of numbers."""

    def __iter__(self):
        return iter(torch.arange(20.0).split(1))


def prove(make_loader):
    return {row.name: row for row in surestep.prove_data(make_loader).rows}


@pytest.mark.parametrize(
    "make_loader",
    [Rows, lambda: DataLoader(Rows(), 4, shuffle=True), lambda: RandomSampler(range(20))],
)
def test_correct_data_hold_every_law(make_loader):
    rows = prove(make_loader)
    assert tuple(rows) == ROWS
    assert {row.status for row in rows.values()} == {"holds"}, rows


@pytest.mark.parametrize(
    ("make_loader", "failed"),
    [
        (Counting, {"workers", "resuming", "shares"}),
        (
            lambda: DataLoader(Counting(), 4, num_workers=1, persistent_workers=True),
            {"workers", "resuming", "shares"},
        ),
        (Unseeded, {"same again"}),
        (Twice, {"order"}),
    ],
)
def test_fault_of_data_is_found(make_loader, failed):
    rows = prove(make_loader)
    assert {name for name, row in rows.items() if row.status == "fails"} == failed, rows
    assert all(row.cause and row.mend for row in rows.values() if row.status == "fails")
    if "resuming" in failed:
        assert rows["resuming"].kind == "data"
        assert "test_data_proofs.py:" in rows["resuming"].source


def test_stream_has_no_order_of_positions():
    rows = prove(Stream)
    assert rows.pop("same again").status == "holds"
    assert {row.status for row in rows.values()} == {"does not apply"}


def test_data_that_exist_already_are_rejected():
    with pytest.raises(TaskError, match="Pass a function that makes the data"):
        surestep.prove_data(Rows())


def test_function_that_returns_nothing_is_rejected():
    with pytest.raises(TaskError, match="Is a return missing"):
        surestep.prove_data(lambda: None)


def test_time_that_is_over_is_reported():
    with pytest.raises(ConfigError, match="The data were not made when the time was over"):
        surestep.prove_data(Rows, minutes=1e-6)


def test_model_and_step_of_a_task_are_not_used():
    def fail():
        raise AssertionError

    config = tiny.config(optim={"lr": 0.1, "groups": ["0 freeze"]}, data={"shuffle": False})
    program = DataProgram(lambda: tiny.task(model=fail), config)
    planned = program.plan({})
    assert (planned.plan.batch_size, planned.plan.data_shuffle) == (8, False)


def test_positions_are_numbers():
    assert [Positions(3)[index] for index in range(3)] == [0, 1, 2]
