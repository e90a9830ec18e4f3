"""The dataset fingerprint, from a few samples, identifies the data in a different process."""

import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import surestep
from surestep.engine.data.make_source import LOADED, dataset_fingerprint, probe_indices
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
def test_probed_indices_are_spread_evenly_with_the_first_and_last(samples, looked_at, found):
    assert probe_indices(samples, looked_at) == found


def test_fingerprint_loads_few_samples_for_any_dataset_size():
    for samples in (100, 10**7):
        data = Samples(samples)
        known(data)
        assert len(data.seen) == 2 * LOADED


def test_fingerprint_of_random_augmentation_ignores_the_random_state():
    found = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.add(known(Samples(draw=lambda: torch.rand(()))))
    assert len(found) == 1


def test_fingerprint_does_not_depend_on_the_seed_of_the_run():
    assert known(Samples(draw=lambda: torch.rand(())), seed=1) == known(
        Samples(draw=lambda: torch.rand(())), seed=2
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_fingerprint_changes_with_the_values(workers):
    said = {"data": {"num_workers": workers}}
    assert known(Samples(), **said) == known(Samples()) != known(Samples(value=1.0), **said)


def test_data_that_changes_on_each_load_has_no_fingerprint():
    draws = iter(range(10**6))
    with pytest.warns(UserWarning, match="gives other samples when it is read again"):
        assert known(Samples(draw=lambda: next(draws))) is None


def test_main_process_loads_no_samples_if_workers_load():
    data = Samples()
    known(data, data={"num_workers": 2})
    assert data.seen == []


def test_fingerprint_changes_with_a_single_row_in_memory():
    x, y = tiny.data(200)
    other = x.clone()
    other[77] += 1
    assert known((x, y)) != known((other, y))


def test_data_that_fails_to_load_has_no_fingerprint():
    class Broken(Samples):
        def __getitem__(self, index):
            raise ZeroDivisionError

    assert known(Broken()) is None


def test_fingerprint_of_tensors_is_the_same_with_or_without_workers():
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
