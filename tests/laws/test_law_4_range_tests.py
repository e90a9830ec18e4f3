"""Law 4: a range test, which trains the objects of the user, changes none of them."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import surestep

QUIET = {"progress": "quiet"}


class Noisy(Dataset):
    """Samples with noise of a generator that the dataset owns."""

    def __init__(self):
        self.x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
        self.noise = np.random.default_rng(5)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return x + 0.01 * float(self.noise.normal()), 5 + x.sum().reshape(1)


class Net(nn.Module):
    """A model with buffers, dropout, a counter, own generators, and draws from all of them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1)
        )
        self.calls, self.seen = 0, []
        self.rng, self.own = random.Random(3), torch.Generator().manual_seed(4)

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        shift = self.rng.random() + float(torch.rand((), generator=self.own))
        return self.layers(x) + 1e-3 * (shift + np.random.normal() + random.gauss(0, 1))


def make_task(model=None, **more):
    torch.manual_seed(0)
    data = DataLoader(
        Noisy(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(6)
    )
    return surestep.Task(Net() if model is None else model, loss="mse", train=data, **more)


def config_of(**options):
    return surestep.Config(max_steps=6, **{"batch_size": 8, "logging": QUIET} | options)


def read_all(task):
    """Return all that the user has: tensors with their memory, attributes, modes, generators."""
    model, data = task.model, task.train
    for draw in (random.gauss, np.random.normal):
        draw(0, 1)  # the second of two gaussians is stored
    tensors = {
        name: (value.tolist(), value.data_ptr(), id(value))
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    grads = {
        name: None if value.grad is None else (value.grad.tolist(), id(value.grad))
        for name, value in model.named_parameters()
    }
    return {
        "tensors": tensors,
        "grads": grads,
        "attributes": (model.calls, list(model.seen), id(model.seen)),
        "modes": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "own": (model.rng.getstate(), model.own.get_state().tolist()),
        "val": None if task.val is None else task.val.noise.bit_generator.state,
        "data": (data.dataset.noise.bit_generator.state, data.generator.get_state().tolist()),
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": repr(np.random.get_state()),
    }


def check_nothing_changed(folder):
    task = make_task(val=Noisy())
    task.model(torch.ones(2, 4)).sum().backward()  # has gradients, and buffers that moved
    task.model.layers[3].eval()
    task.model.layers[0].bias.requires_grad_(False)
    seed_all()
    before = read_all(task)
    seed_all()
    for draw in (random.gauss, np.random.normal):
        draw(0, 1)
    found = surestep.find_lr(task, config_of(optim="sgd"), seeds=1, steps=100)
    assert len(found.curves[0].losses) > 10
    assert len(found.trainings) >= 3
    state = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
    seed_all()
    after = read_all(task)
    assert state == (after["python"], after["numpy"], after["torch"])
    assert after == before
    assert not list(folder.iterdir())


def seed_all():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def test_range_test_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_nothing_changed(tmp_path)
