"""Random numbers of different libraries, purposes, samples, epochs and splits are independent.

numpy's, Python's and torch's generators are all MT19937, so equal seeds give equal numbers. Each
pair of sequences is counted in a table of 8 x 8 cells. The seeds are fixed, so a test always has
the same result.
"""

import random
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.rng import ModelRNG, derive_seed, preserve_rng, seed_loading, set_seed
from tests import tiny

CELLS = 8
MOST = (
    114.8  # chi-squared of 49 degrees of freedom, above which a table has a probability of 1e-7..
)


def is_dependent(a, b):
    """Whether a table of two sequences of cells is too unlikely if they are independent."""
    counts = np.bincount(np.asarray(a) * CELLS + np.asarray(b), minlength=CELLS**2)
    counts = counts.reshape(CELLS, CELLS)
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    return ((counts - expected) ** 2 / expected).sum() > MOST


def find_dependent(sequences):
    pairs = combinations(sequences, 2)
    return [pair for pair in pairs if is_dependent(sequences[pair[0]], sequences[pair[1]])]


# As low bits and as high bits of the words that a generator gives.
INTEGERS = {
    "torch": lambda: int(torch.randint(CELLS, ())),
    "numpy": lambda: int(np.random.randint(CELLS)),
    "python": lambda: random.randrange(CELLS),
}
SHARES = {
    "torch": lambda: int(torch.rand((), dtype=torch.float64) * CELLS),
    "numpy": lambda: int(np.random.rand() * CELLS),
    "python": lambda: int(random.random() * CELLS),
}


def draw(forms=INTEGERS):
    return [function() for function in forms.values()]


def sequences_of(places, count, forms=INTEGERS):
    """The first draws of each library in each place, by (library, place)."""
    found = {}
    with preserve_rng():
        for place, seed_number in places.items():
            rows = []
            for number in range(count):
                seed_number(number)
                rows.append(draw(forms))
            found |= {
                (name, place): drawn
                for name, drawn in zip(forms, zip(*rows, strict=True), strict=True)
            }
    return found


def test_dependence_would_be_found():
    def seed_both(number):
        torch.manual_seed(number)
        np.random.seed(number)

    found = find_dependent(sequences_of({"": seed_both}, 1000))
    assert (("torch", ""), ("numpy", "")) in found


PLACES = {
    "recipe": lambda n: set_seed(derive_seed("recipe", n)),
    "build": lambda n: set_seed(derive_seed("build", n)),
    "load": lambda n: seed_loading(derive_seed("load", 0, 0, n, "train")),
    "load, next epoch": lambda n: seed_loading(derive_seed("load", 0, 1, n, "train")),
    "load, next sample": lambda n: seed_loading(derive_seed("load", 0, 0, n + 1, "train")),
    "load, next seed": lambda n: seed_loading(derive_seed("load", 1, 0, n, "train")),
    "load, val": lambda n: seed_loading(derive_seed("load", 0, 0, n, "val")),
    "inputs": lambda n: seed_loading(derive_seed("inputs", 0, 0, n, "train")),
    "transform": lambda n: seed_loading(derive_seed("transform", 0, n)),
    "model": lambda n: ModelRNG(0, torch.device("cpu")).seed_for("model", 0, n),
    "model, next step": lambda n: ModelRNG(0, torch.device("cpu")).seed_for("model", 1, n),
    "evaluate, val": lambda n: ModelRNG(0, torch.device("cpu")).seed_for("evaluate", n, 0, "val"),
    "evaluate, far": lambda n: ModelRNG(0, torch.device("cpu")).seed_for("evaluate", n, 0, "far"),
    "plain manual_seed": torch.manual_seed,
}


@pytest.mark.parametrize("forms", [INTEGERS, SHARES], ids=["integers", "shares"])
def test_libraries_purposes_samples_epochs_and_splits_are_independent(forms):
    sequences = sequences_of(PLACES, 1000, forms)
    del sequences["numpy", "plain manual_seed"], sequences["python", "plain manual_seed"]
    assert find_dependent(sequences) == []


def test_own_generators_are_independent_of_the_global_ones_and_of_each_other():
    owner = {
        "torch.Generator": torch.Generator(),
        "RandomState": np.random.RandomState(),
        "default_rng": np.random.default_rng(),
        "random.Random": random.Random(),
        "another": torch.Generator(),
    }
    own, rows = OwnGenerators(("dataset", owner)), []
    with preserve_rng():
        for number in range(2000):
            seed = derive_seed("load", 0, 0, number, "train")
            seed_loading(seed)
            own.reseed(seed)
            rows.append(
                {
                    "torch": int(torch.randint(CELLS, ())),
                    "numpy": int(np.random.randint(CELLS)),
                    "python": random.randrange(CELLS),
                    "own torch": int(torch.randint(CELLS, (), generator=owner["torch.Generator"])),
                    "another": int(torch.randint(CELLS, (), generator=owner["another"])),
                    "own numpy": int(owner["RandomState"].randint(CELLS)),
                    "own default_rng": int(owner["default_rng"].integers(CELLS)),
                    "own python": owner["random.Random"].randrange(CELLS),
                }
            )
    assert find_dependent({name: [row[name] for row in rows] for name in rows[0]}) == []


class Draws(Dataset):
    """Samples of what each library draws."""

    def __len__(self):
        return 701

    def __getitem__(self, index):
        return torch.tensor(draw()), torch.zeros(1)


class Drawing(nn.Module):
    """A model that draws in its forward."""

    def __init__(self):
        super().__init__()
        self.linear, self.rows = nn.Linear(1, 1), []

    def forward(self, x):
        self.rows.append(draw())
        return self.linear(x[:, :1].float())


def check_run_is_independent(folder):
    """Train two epochs and evaluate; compare the draws of all libraries and places."""
    model, in_inputs, in_transform, loaded = Drawing(), [], [], []

    def inputs(batch):
        in_inputs.append(draw())
        loaded.append(batch[0][0].tolist())
        return batch

    def transform(x, y):
        in_transform.append(draw())
        return x, y

    task = surestep.Task(
        model, nn.MSELoss(), train=Draws(), val=Draws(), inputs=inputs, batch_transform=transform
    )
    options = {"validation": {"batch_size": 1}, "doctor": {"check_data": "off"}}
    config = tiny.config(
        epochs=2, batch_size=1, data={"shuffle": False, "num_workers": 0}, **options
    )
    drawn = {"load": loaded, "inputs": in_inputs, "transform": in_transform, "model": model.rows}
    with surestep.prepare(task, config, run=folder()) as session:
        for rows in drawn.values():
            rows.clear()  # of the checks
        for _ in session.steps():
            pass
        session.evaluate()
    samples, sequences = len(Draws()), {}
    for place, rows in drawn.items():
        passes = 2 if place == "transform" else 3  # two epochs, and the validation set
        assert len(rows) == passes * samples
        for number in range(passes):
            columns = zip(*rows[number * samples :][:samples], strict=True)
            named = zip(INTEGERS, columns, strict=True)
            sequences |= {(library, place, number): column for library, column in named}
    assert find_dependent(sequences) == []


def test_draws_of_a_run_are_independent(folder):
    check_run_is_independent(folder)


def check_student(folder):
    """The model that a function builds is not the one that the user built from the same seed."""

    def build():
        return nn.Linear(4, 3)

    torch.manual_seed(0)
    teacher, x = build(), torch.randn(20, 4)
    task = surestep.Task(build, nn.MSELoss(), train=(x, teacher(x).detach()))
    with surestep.prepare(task, tiny.config(max_steps=1, seed=0), run=folder()) as session:
        assert not torch.equal(session.model.weight, teacher.weight)


def test_student_is_not_its_teacher(folder):
    check_student(folder)
