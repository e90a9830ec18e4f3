"""Draws from Python's and numpy's global generators are detected from their state memory."""

import random
import sys

import numpy as np

from surestep.engine import rng


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
