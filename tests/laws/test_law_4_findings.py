"""Law 4: checking a run never changes it, bit for bit."""

import random
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from tests import tiny

COUNT = 28
X, Y = tiny.data(COUNT)


class Augmented(Dataset):
    """Draws from all global generators."""

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        noise = torch.randn(4) + float(np.random.rand()) + random.random()
        return X[index] + 0.1 * noise, Y[index]


class Owning(Augmented):
    """Draws from a generator that it owns."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index):
        return X[index] + torch.from_numpy(self.rng.normal(size=4)).float(), Y[index]


class Stream(IterableDataset):
    """Draws from all global generators, to shuffle too."""

    def __iter__(self):
        data = Augmented()
        for index in random.sample(range(COUNT), COUNT):
            yield data[index]


class Resumable(IterableDataset):
    """Has a state, with a generator that each pass draws from."""

    def __init__(self):
        self.at, self.rng = 0, np.random.default_rng(0)

    def __iter__(self):
        while self.at < COUNT:
            self.at += 1
            yield X[self.at - 1] + torch.from_numpy(self.rng.normal(size=4)).float(), Y[self.at - 1]

    def state_dict(self):
        return {"at": self.at, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.at, self.rng.bit_generator.state = state["at"], state["rng"]


class Rare(IterableDataset):
    """Draws from a generator that it owns, but only late in a pass, and never starts it again."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        for index in range(COUNT):
            noise = self.rng.normal(size=4) if index > 20 else np.zeros(4)
            yield X[index] + torch.from_numpy(noise).float(), Y[index]


def by_function():
    return lambda epoch: iter(Stream())


class Dropping(nn.Module):
    """Draws in its forward pass."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)


def train(run, make, workers, doctor):
    """Return the losses and metrics, the weights, and the states of the global generators."""
    torch.manual_seed(3)
    parts = {"train": make(), "val": make(), "model": Dropping()}
    options = {"data": {"num_workers": workers}, "max_grad_norm": 1e-2, "max_steps": 25}
    with tiny.prepare(run, parts, epochs=None, doctor=doctor, **options) as session:
        losses = [float(step.loss) for step in session.steps()]
        found = [*losses, session.evaluate()], tiny.weights(session.model)
        states = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    return found, states, session


@cache
def train_unchecked(make, workers):
    return train(None, make, workers, {"check_data": "off", "ignore": ALL})[:2]


@pytest.mark.parametrize("checked", ["sample", "all"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "make", [lambda: (X, Y), Augmented, Owning, Stream, Resumable, Rare, by_function]
)
def test_checks_change_nothing_that_is_trained(tmp_path, make, workers, checked):
    expected, expected_states = train_unchecked(make, workers)
    found, states, session = train(tmp_path / "run", make, workers, {"check_data": checked})
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])
    assert all(map(_equal, states, expected_states))
    assert [found["rule"] for found in session.run.status["findings"]][-1] == "SS117"


@pytest.mark.parametrize("make", [lambda: (X, Y), Augmented, Owning, Stream, Resumable])
def test_check_of_a_resumed_run_changes_nothing_that_is_trained(tmp_path, make):
    found = []
    for name in ("kept", "deleted"):
        torch.manual_seed(3)
        options = {"epochs": None, "max_steps": 12}
        parts = {"train": make(), "model": Dropping()}
        with tiny.prepare(tmp_path / name, parts, **options) as session:
            for step in session.steps():
                if step.step == 2:
                    session.save()
                    break
        if name == "deleted":  # so the data is checked again
            (tmp_path / name / "data_findings.json").unlink()
        parts = {"train": make(), "model": Dropping()}
        with tiny.prepare(tmp_path / name, parts, **options) as session:
            found.append([float(step.loss) for step in session.steps()])
            found.append(tiny.weights(session.model).tolist())
        assert (tmp_path / name / "data_findings.json").exists()
    assert found[:2] == found[2:]


ALL = {"SS117": "to compare", "SS605": "to compare"}


def _equal(first, second):
    return first == second if isinstance(first, tuple) else bool((first == second).all())
