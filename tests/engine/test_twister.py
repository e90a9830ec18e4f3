"""Python's generator is kept and put back exactly, by its memory and without."""

import importlib
import random
import sys

import pytest

from surestep.engine import python_rng as twister


def draws(count: int) -> list[float]:
    return [random.random() for _ in range(count)]


@pytest.fixture(params=["by its memory", "by its numbers"])
def way(request, monkeypatch):
    if request.param == "by its numbers":
        monkeypatch.setattr(twister, "_MEMORY", None)
    else:
        assert twister._MEMORY is not None, "this Python's generator lies otherwise than we know"


@pytest.mark.parametrize("before", [0, 1, 311, 312, 313, 624, 1000])
def test_what_is_drawn_goes_on_where_it_was_kept(way, before):
    random.seed(before)
    draws(before)
    kept = twister.get_state()
    expected = draws(1000)
    random.seed(7)
    draws(3)
    twister.set_state(kept)
    assert draws(1000) == expected
    twister.set_state(kept)  # which nobody wrote into meanwhile
    assert draws(1000) == expected


def test_the_second_half_of_a_pair_of_gaussians_is_kept(way):
    random.seed(0)
    random.gauss(0, 1)
    kept = twister.get_state()
    expected = [random.gauss(0, 1) for _ in range(3)]
    random.seed(1)
    twister.set_state(kept)
    assert [random.gauss(0, 1) for _ in range(3)] == expected


def test_the_memory_is_the_state_that_python_tells(way):
    random.seed(3)
    draws(5)
    told = random.getstate()
    kept = twister.get_state()
    random.seed(4)
    twister.set_state(kept)
    assert random.getstate() == told


def test_a_generator_that_lies_otherwise_is_not_touched(monkeypatch):
    random.seed(3)
    monkeypatch.setattr(random, "getstate", random.Random(4).getstate)
    assert twister._memory() is None


def test_where_several_threads_run_at_once_python_is_asked_for_its_numbers(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert twister._memory() is None


def test_functions_that_somebody_has_replaced_are_no_trouble(monkeypatch):
    monkeypatch.setattr(random, "random", lambda: 0.5)
    assert importlib.reload(twister)._MEMORY is not None


def test_another_python_is_asked_for_its_numbers(monkeypatch):
    monkeypatch.setattr(twister.sys.implementation, "name", "pypy")
    assert twister._memory() is None


@pytest.mark.parametrize("value", [0, 5, 2**32 + 1, 2**63 - 1])
def test_seeding_is_that_of_the_random_module(value):
    random.seed(value)
    expected = random.getstate()
    random.gauss(0, 1)  # which keeps the second of a pair
    twister.seed(value)
    assert random.getstate() == expected


def test_seeding_without_a_global_object_is_that_of_the_random_module(monkeypatch):
    monkeypatch.setattr(twister, "GLOBAL", None)
    twister.seed(7)
    assert random.getstate() == random.Random(7).getstate()
