"""A few samples by which the data of another process is known again."""

import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import surestep
from surestep.engine.data.open_source import LOADED, dataset_fingerprint, probe_indices
from surestep.trainer.planning import plan_task
from tests import tiny


class Samples(Dataset):
    def __init__(self, samples=100, draw=lambda: 0.0, value=0.0):
        self.samples, self.draw, self.value = samples, draw, value
        self.seen = []

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        self.seen.append((index, os.getpid()))
        return torch.full((4,), float(index)) + self.draw() + self.value, index % 3


def fingerprint_of(planned):
    task = planned.task
    return dataset_fingerprint(task.train, "train", task=task, plan=planned.plan)


def known(train, **said):
    planned = tiny.plan({"train": train}, **said)
    return fingerprint_of(planned)


@pytest.mark.parametrize(
    ("samples", "looked_at", "found"),
    [(3, 5, [0, 1, 2]), (5, 5, [0, 1, 2, 3, 4]), (100, 5, [0, 25, 50, 74, 99]), (1, 5, [0])],
)
def test_places_are_spread_with_the_first_and_the_last(samples, looked_at, found):
    assert probe_indices(samples, looked_at) == found


def test_a_few_samples_are_loaded_however_many_there_are():
    for samples in (100, 10**7):
        data = Samples(samples)
        known(data)
        assert len(data.seen) == 2 * LOADED


def test_random_augmentation_gives_the_same_digest_in_any_state_of_the_generators():
    found = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.add(known(Samples(draw=lambda: torch.rand(()))))
    assert len(found) == 1


def test_the_seed_of_the_run_is_no_matter_of_its_data():
    assert known(Samples(draw=lambda: torch.rand(())), seed=1) == known(
        Samples(draw=lambda: torch.rand(())), seed=2
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_other_values_are_noticed(workers):
    said = {"data": {"num_workers": workers}}
    assert known(Samples(), **said) == known(Samples()) != known(Samples(value=1.0), **said)


def test_data_that_is_never_the_same_is_not_known_by_its_samples():
    draws = iter(range(10**6))
    assert known(Samples(draw=lambda: next(draws))) is None


def test_where_workers_load_this_process_loads_nothing():
    data = Samples()
    known(data, data={"num_workers": 2})
    assert data.seen == []


def test_one_row_in_memory_that_is_other_is_noticed():
    x, y = tiny.data(200)
    other = x.clone()
    other[77] += 1
    assert known((x, y)) != known((other, y))


def test_data_that_fails_is_told_by_the_first_batch():
    class Broken(Samples):
        def __getitem__(self, index):
            raise ZeroDivisionError

    assert known(Broken()) is None


def test_tensors_are_known_the_same_whoever_slices_them():
    x, y = tiny.data()
    loaders = [DataLoader(TensorDataset(x, y), 8, num_workers=workers) for workers in (0, 2)]
    found = {known((x, y)), known((x, y), data={"num_workers": 2}), *map(loaded, loaders)}
    assert len(found) == 1


def loaded(loader):
    planned = plan_task(
        tiny.task(train=loader),
        surestep.Config(epochs=1, logging={"progress": "quiet"}),
    )
    return fingerprint_of(planned)
