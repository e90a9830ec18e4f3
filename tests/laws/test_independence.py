"""Random numbers of different libraries, purposes, samples, epochs and splits are independent.

numpy's, Python's and torch's generators are all MT19937, so equal seeds give equal numbers. Each
pair of sequences is counted in a table of 8 x 8 cells. The seeds are fixed, so a test always has
the same result.
"""

import random

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.rng import ModelRNG, derive_seed, preserve_rng, seed_loading, set_seed
from tests import tiny
from tests.laws.support.independence import (
    CELLS,
    INTEGERS,
    SHARES,
    by_library,
    draw,
    draws_of_run,
    find_dependent,
)


def sequences_of(places, count, forms=INTEGERS):
    """The first draws of each library in each place, by (library, place)."""
    found = {}
    with preserve_rng():
        for place, seed_number in places.items():
            rows = []
            for number in range(count):
                seed_number(number)
                rows.append(draw(forms))
            found |= by_library((place,), rows)
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
    sequences = sequences_of(PLACES, 500, forms)
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
        for number in range(1000):
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


FEW = 201  # samples: each batch of a worker costs a millisecond
RUNS = {
    "samples by position": {},
    "a stream": {"stream": True},
    "workers": {"workers": 2, "size": FEW},
    "a stream of workers": {"stream": True, "workers": 2, "size": FEW},
    "a step of the task": {"manual": True},
}


def check_run_is_independent(folder, **options):
    assert find_dependent(draws_of_run(folder(), **options)) == []


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_draws_of_a_run_are_independent(folder, options):
    check_run_is_independent(folder, **options)


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
