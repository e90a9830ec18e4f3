import ast
import os
import random
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import surestep
from surestep.engine import rng
from surestep.engine.rng import (
    PURPOSES,
    ModelRNG,
    derive_seed,
    preserve_rng,
    seed_loading,
    set_seed,
)
from tests.laws.support.independence import draws_of_run


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_seed_is_a_function_of_its_position():
    # A literal, because a different expression would break every resume.
    assert derive_seed("order", 0, 0) == 2304759194598237764
    assert derive_seed("order", 0, 1) != derive_seed("order", 1, 0)


def test_seeds_have_63_bits_and_differ():
    seeds = {derive_seed("load", 0, 0, position, "train") for position in range(1000)}
    assert len(seeds) == 1000
    assert 0 <= min(seeds) <= max(seeds) < 2**63


SOURCE = Path(surestep.__file__).parent
USER_CODE = ("recipes", "testing", "doctor/rules")  # code as a user may write it
SEEDERS = {"manual_seed", "seed_loading", "set_seed", "seeded"}


def calls_of(names):
    """Yield the calls of functions with these names in the package, with the file."""
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                if name in names:
                    yield file, node


def test_each_derived_seed_has_a_purpose_of_the_table():
    used = set()
    for file, call in calls_of({"derive_seed", "seed_for"}):
        if isinstance(call.args[0], ast.Name):  # within seed_for
            assert (file, ast.unparse(call)) == (
                "engine/rng.py",
                "derive_seed(purpose, self.seed, *place)",
            )
            continue
        purpose = ast.literal_eval(call.args[0])
        place = call.args[1:]
        if purpose == "noise":  # a batch of the user's loop adds its position
            *place, position = place
            assert isinstance(position, ast.Starred)
        assert not any(isinstance(arg, ast.Starred) for arg in place)
        of_run = getattr(call.func, "attr", "") == "seed_for"  # which adds the seed
        more = len(place) + of_run - len(PURPOSES[purpose])
        if file == "engine/step/manual_step.py":  # "model" with a pass, or without a position
            assert (purpose, abs(more)) == ("model", 1)
        else:
            assert more == 0, f"{file}: {ast.unparse(call)}"
        used.add(purpose)
    assert used == set(PURPOSES)


def test_every_generator_is_seeded_with_a_derived_seed():
    for file, call in calls_of(SEEDERS):
        if file.startswith(USER_CODE) or file in ("engine/rng.py", "engine/own_generators.py"):
            continue
        shown = ast.unparse(call.args[0])
        assert shown.startswith("derive_seed(") or shown in ("seed", "own"), f"{file}: {shown}"


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"manual": True}])
def test_a_run_seeds_with_derived_seeds_only(tmp_path, monkeypatch, options):
    derived, used, own = set(), set(), rng._seed_globals

    def derive(*place):
        derived.add(derive_seed(*place))
        return derive_seed(*place)

    def seed_globals(seed):
        used.add(seed)
        own(seed)

    for name, module in list(sys.modules.items()):
        if name.startswith("surestep.") and getattr(module, "derive_seed", None) is derive_seed:
            monkeypatch.setattr(module, "derive_seed", derive)
    monkeypatch.setattr(rng, "_seed_globals", seed_globals)
    draws_of_run(tmp_path / "run", 5, **options)
    assert len(used) > 30
    assert used <= derived


def seeds_of(purpose, values):
    """Yield seeds of a purpose for all combinations of some values; the text is the last one."""
    for place in product(values, repeat=len(PURPOSES[purpose])):
        if PURPOSES[purpose][-1] in ("split", "dataset"):
            place = (*place[:-1], f"{place[-1]} 0")  # a name may look like numbers
        yield derive_seed(purpose, *place)


def test_no_two_purposes_or_places_share_a_seed_with_each_other_or_with_plain_seeds():
    seeds = [seed for purpose in PURPOSES for seed in seeds_of(purpose, (0, 1, 2, 17))]
    for seed in seeds[::3]:
        seeds += [derive_seed(name, seed) for name in ("numpy", "python", "worker", "generator")]
    assert len(seeds) > 2000
    # torch's generator on a CPU and numpy's use 32 bits of a seed.
    used = [seed % 2**32 for seed in seeds]
    assert len(set(used)) == len(used)
    assert min(used) > 10_000


def test_name_of_a_split_cannot_look_like_another_place():
    places = [(1, 2, "3"), (1, 2, "3 4"), (1, 2, "2 3"), (12, 3, ""), (1, 23, "")]
    assert len({derive_seed("evaluate", 0, *place) for place in places}) == len(places)


@pytest.fixture
def other_bits():
    """A different bit generator than numpy's default, as a program may choose."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(0))
    yield
    np.random.set_bit_generator(before)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_set_seed_seeds_all_generators(seed):
    set_seed(seed)
    first = draw()
    draw()
    set_seed(seed)
    assert draw() == first


def test_set_seed_seeds_a_custom_numpy_bit_generator(other_bits):
    def drawn():
        set_seed(7)
        return [np.random.randn() for _ in range(3)]  # the next would be the cached half of a pair

    assert drawn() == drawn()
    assert isinstance(np.random.get_bit_generator(), np.random.PCG64)


def test_deterministic_sets_torch_and_cublas_flags(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = torch.backends.cudnn.deterministic
    try:
        set_seed(0, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = before
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_preserve_rng_restores_the_generators():
    set_seed(1)
    expected = draw()
    set_seed(1)
    with preserve_rng():
        seed_loading(5)
        draw()
    assert draw() == expected


def test_nested_preserve_rng_restores_the_generators():
    with preserve_rng():
        seed_loading(5)
        expected = draw()
        seed_loading(5)
        with preserve_rng():
            seed_loading(6)
            draw()
        assert draw() == expected


def test_preserve_rng_restores_a_custom_numpy_bit_generator(other_bits):
    before = np.random.get_bit_generator().state
    with preserve_rng():
        seed_loading(5)
        found = [np.random.randn() for _ in range(3)]
        seed_loading(5)
        assert [np.random.randn() for _ in range(3)] == found
    assert np.random.get_bit_generator().state == before


def test_loading_draws_the_same_numbers_for_the_same_seed():
    with preserve_rng():
        seed_loading(2**63 - 1)
        first = draw()
        seed_loading(2**63 - 1)
        assert draw() == first


def test_model_draws_depend_on_step_and_position():
    randomness = ModelRNG(0, torch.device("cpu"))

    def at(*place):
        randomness.seed_for("model", *place)
        return float(torch.rand(()))

    assert at(3, 8) == at(3, 8)
    assert len({at(3, 8), at(4, 8), at(3, 9)}) == 3
