"""Draws from Python's and numpy's global generators are detected from their state memory."""

import random
import sys

import numpy as np
import pytest
import torch

from surestep.engine import rng

CPU = torch.device("cpu")


def test_draw_from_python_changes_the_watched_memory():
    memory = rng._python_memory()
    assert memory is not None, "the layout of this Python's generator is unknown"
    watched = memory[:8].cast("Q")
    before = watched[0]
    random.getstate()
    assert watched[0] == before
    random.random()
    assert watched[0] != before


def test_python_state_is_not_read_if_its_layout_is_unknown(monkeypatch):
    random.seed(3)
    monkeypatch.setattr(random, "getstate", random.Random(4).getstate)
    assert rng._python_memory.__wrapped__() is None  # not the one that this process has found


def test_python_state_is_not_read_without_the_gil(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert rng._python_memory.__wrapped__() is None  # not the one that this process has found


def test_python_state_is_only_read_in_cpython(monkeypatch):
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert rng._python_memory.__wrapped__() is None  # not the one that this process has found


def test_every_step_is_seeded_if_the_layout_is_unknown(monkeypatch):
    monkeypatch.setattr(rng, "_python_memory", lambda: None)
    generators = rng.GlobalGenerators(can_recompute=True)
    with generators.preserved():
        generators.seed(1)
    assert generators.seeded


def test_preserved_generators_resume_their_sequence():
    random.seed(0)
    np.random.seed(0)
    random.gauss(0, 1)  # caches the second of a pair
    state = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    with rng.preserve_globals():
        random.seed(1)
        random.gauss(0, 1)
        np.random.seed(1)
    assert random.getstate() == state
    assert np.array_equal(
        np.random.get_state(legacy=False)["state"]["key"], numpy_state["state"]["key"]
    )


def draw_all():
    """Draw from all generators; Python's stores the second gaussian of a pair."""
    return torch.rand(()).item(), np.random.random(), random.gauss(0.0, 1.0)


def seed_plainly(seed):
    """Seed the generators as a call of a hook does, by public functions alone."""
    torch.manual_seed(seed)
    np.random.seed(seed >> 32 ^ 0x5555_5555)
    words = np.random.get_state(legacy=False)["state"]["key"].tolist()
    random.setstate((3, (*words, 624), None))
    np.random.seed(seed >> 32)


def test_call_draws_what_plain_seeds_give():
    drawn = [rng.SeparateRNG(2**62 + 5, CPU).call(step, draw_all) for step in (0, 1)]
    for step in (0, 1):
        seed_plainly((2**62 + 5 + step * 0x9E37_79B9_7F4A_7C15) % 2**63)
        assert draw_all() == drawn[step]


def test_call_within_a_call_draws_its_own():
    def draw_twice(inner):
        first = draw_all()
        return first, inner.call(0, draw_all), draw_all()

    class Nothing:
        def call(self, step, function):
            return None

    first, of_inner, second = rng.SeparateRNG(5, CPU).call(0, draw_twice, rng.SeparateRNG(6, CPU))
    assert (first, None, second) == rng.SeparateRNG(5, CPU).call(0, draw_twice, Nothing())
    assert of_inner == rng.SeparateRNG(6, CPU).call(0, draw_all)


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_call_that_fails_restores_the_generators(bits):
    def fail():
        draw_all()
        np.random.set_bit_generator(np.random.MT19937(9))
        raise KeyError

    def draw_after(*calls):
        np.random.set_bit_generator(bits(3))
        torch.manual_seed(3), random.seed(3)
        for call in calls:
            with pytest.raises(KeyError):
                call(0, fail)
        return draw_all()

    before = np.random.get_bit_generator()
    try:
        assert draw_after(rng.SeparateRNG(5, CPU).call) == draw_after()
    finally:
        np.random.set_bit_generator(before)


def test_call_seeds_all_generators_if_the_layout_is_unknown(monkeypatch):
    monkeypatch.setattr(rng, "_SPARE", [])
    monkeypatch.setattr(rng, "_python_memory", lambda: None)
    drawn = [rng.SeparateRNG(5, CPU).call(step, draw_all) for step in (0, 1, 0)]
    assert drawn[0] == drawn[2]
    assert not {*drawn[0]} & {*drawn[1]}
