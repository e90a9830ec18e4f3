import os
import random

import numpy as np
import pytest
import torch

from surestep.engine.rng import (
    ModelRNG,
    derive_seed,
    preserve_rng,
    seed_loading,
    set_seed,
)


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_seed_is_a_function_of_its_position():
    # A literal, because a different expression would break every resume.
    assert derive_seed("order", 0, 0) == 2304759194598237764
    assert derive_seed("order", 0, 1) != derive_seed("order", 1, 0)


def test_seeds_have_63_bits_and_differ():
    seeds = {derive_seed("load", 0, 0, position) for position in range(1000)}
    assert len(seeds) == 1000
    assert 0 <= min(seeds) <= max(seeds) < 2**63


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
        randomness.seed_micro_batch(*place)
        return float(torch.rand(()))

    assert at(3, 8) == at(3, 8)
    assert len({at(3, 8), at(4, 8), at(3, 9)}) == 3
