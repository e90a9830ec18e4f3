"""Generators that code draws from, wherever they are: a resumed run draws the same numbers."""

import random
import sys
from collections import deque
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from tests.twice.compare import assert_same, plain_config, weights

N = 47
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2]).clone()
GENERATOR = random.Random(0)

augment = ModuleType("own_augment")  # as `import own_augment` of a file beside the script
augment.__file__ = "/tmp/own_augment.py"
exec(
    "import numpy as np\n"
    "RNG = np.random.default_rng(0)\n"
    "def shift(x):\n"
    "    return x + RNG.random()\n",
    vars(augment),
)
sys.modules["own_augment"] = augment


class Static:
    rng = np.random.default_rng(0)

    @staticmethod
    def shift(x):
        return x + Static.rng.random()


class Shift:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, x):
        return x + self.rng.random()


def in_module(x):
    return augment.shift(x)


def in_module_itself(x):
    return x + augment.RNG.random()


def in_class(x):
    return Static.shift(x)


def in_comprehension(x):
    return x + torch.tensor([GENERATOR.random() for _ in range(4)], dtype=x.dtype)


def in_lambda(x):
    add = lambda value: value + GENERATOR.gauss(0, 1)  # noqa: E731
    return add(x)


def in_expression(x):
    return x + sum(GENERATOR.random() for _ in range(3))


def in_closure():
    rng = np.random.default_rng(0)

    def shift(x):
        return x + sum(rng.random() for _ in range(3))

    return shift


class Queue:
    def __init__(self):
        self.transforms = deque([Shift(), Shift()], maxlen=2)

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


MAKE = [
    lambda: in_module,
    lambda: in_module_itself,
    lambda: in_class,
    lambda: in_comprehension,
    lambda: in_lambda,
    lambda: in_expression,
    in_closure,
    Queue,
]


class Changed(Dataset):
    def __init__(self, change):
        self.change = change

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.change(X[index]), Y[index]


class Within(nn.Module):
    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.change = nn.Linear(4, 1).double(), change

    def forward(self, x):
        return self.linear(self.change(x) if self.training else x)


def of_data(change):
    return surestep.Task(Within(lambda x: x), nn.MSELoss(), train=Changed(change))


def of_model(change):
    return surestep.Task(Within(change), nn.MSELoss(), train=(X, Y))


@pytest.mark.parametrize("change", MAKE)
@pytest.mark.parametrize("place", [of_data, of_model])
def test_generator_that_code_draws_from_draws_the_same_after_a_resume(place, change):
    found = []
    for folder, stops in (("runs/whole", (20,)), ("runs/parts", (9, 20))):
        for stop in stops:
            task = place(change())
            config = plain_config(max_steps=stop, batch_size=7, data={"num_workers": 0})
            surestep.Trainer(task, config, run=folder).fit()
        found.append(weights(task.model))
    assert_same(*found, exact=True)


noise = np.random.default_rng(7)


class Named(nn.Module):
    """Has an attribute with the name of a generator of the script, which it does not draw from."""

    def __init__(self):
        super().__init__()
        self.linear, self.noise = nn.Linear(4, 1).double(), 0.0

    def forward(self, x):
        return self.linear(x) + self.noise


def test_generator_of_the_script_with_the_name_of_an_attribute_is_left_alone():
    global noise
    noise = np.random.default_rng(7)
    task, drawn = surestep.Task(Named(), nn.MSELoss(), train=(X, Y)), []
    with surestep.prepare(task, plain_config(epochs=1, batch_size=7)) as session:
        for _ in session.steps():
            drawn.append(noise.random())
    assert_same(np.random.default_rng(7).random(len(drawn)).tolist(), drawn, exact=True)
