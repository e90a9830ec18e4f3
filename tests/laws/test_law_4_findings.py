"""Law 4: checking a run never changes it, bit for bit."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tests import tiny

X, Y = tiny.data(40)


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


class Dropping(nn.Module):
    """Draws in its forward pass."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("checked", ["sample", "all"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [lambda: (X, Y), Augmented, Owning])
def test_checks_change_nothing_that_is_trained(tmp_path, make, workers, checked):
    found, states = [], []
    for doctor in ({"check_data": "off", "ignore": ALL}, {"check_data": checked}):
        torch.manual_seed(3)
        parts = {"train": make(), "val": make(), "model": Dropping()}
        options = {"data": {"num_workers": workers}, "max_grad_norm": 1e-2, "max_steps": 25}
        run = tmp_path / doctor["check_data"]
        with tiny.prepare(run, parts, epochs=None, doctor=doctor, **options) as session:
            losses = [float(step.loss) for step in session.steps()]
            found.append((losses, tiny.weights(session.model)))
            states.append((torch.get_rng_state(), np.random.get_state()[1], random.getstate()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert all(map(_equal, states[0], states[1]))
    assert [each["rule"] for each in session.run.status["findings"]][-1] == "SS117"


ALL = {"SS117": "to compare", "SS605": "to compare"}


def _equal(first, second):
    return first == second if isinstance(first, tuple) else bool((first == second).all())
