import gc
import subprocess
import sys

import pytest

from surestep.engine.step import gc as garbage
from surestep.engine.step.gc import import_without_collecting, manual_gc

NEW_PROCESS = """
import gc
from surestep.engine.step.gc import import_without_collecting, manual_gc

seen, count = [], gc.get_freeze_count
gc.callbacks.append(lambda phase, about: seen.append(phase))
gc.get_freeze_count = None  # it visits every frozen object: 20 ms and more
for module in ("torch", "torch.fx"):
    with import_without_collecting():
        assert not gc.isenabled()
        __import__(module)
    assert gc.isenabled()
    print(len(seen), len(gc.get_objects()) < 1000, count() > 100_000)
with manual_gc():
    pass
print(count() > 100_000)
"""


def test_new_process_imports_torch_without_garbage_collection():
    done = subprocess.run(
        [sys.executable, "-c", NEW_PROCESS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [*["0", "True", "True"] * 2, "True"]


@pytest.fixture
def collecting():
    """Enable the garbage collector, which is off in the tests."""
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    if not was_enabled:
        gc.disable()


@pytest.mark.usefixtures("collecting")
def test_imports_after_torch_do_not_change_the_garbage_collector(monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("frozen"))
    assert "torch" in sys.modules
    with import_without_collecting():
        assert gc.isenabled()


@pytest.fixture
def collected(monkeypatch):
    """The collected generations; a full collection takes 20 ms of a fake clock.

    The process has trained before.
    """
    clock, generations = [0.0], []
    monkeypatch.setattr(garbage._PROCESS, "has_trained", True)

    def collect(generation=2):
        generations.append(generation)
        clock[0] += 0.02 if generation == 2 else 0.0
        return 0

    monkeypatch.setattr("surestep.engine.step.gc.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(gc, "collect", collect)
    was = gc.isenabled()
    gc.enable()
    yield clock, generations
    if not was:
        gc.disable()


def test_full_collections_take_at_most_1_percent_of_short_epochs(collected):
    clock, generations = collected
    with manual_gc() as collect:
        generations.clear()
        for _ in range(1000):  # epochs of 50 ms
            clock[0] += 0.05
            collect(2)
    full = generations.count(2)
    assert 0.005 < full * 0.02 / clock[0] <= 0.0101
    assert generations[0] == 2
    assert set(generations) == {1, 2}


def test_each_long_epoch_ends_with_a_full_collection(collected):
    clock, generations = collected
    with manual_gc() as collect:
        generations.clear()
        for _ in range(5):
            clock[0] += 10.0
            collect(2)
    assert generations == [2] * 5


def test_new_process_waits_with_its_first_full_collection(collected, monkeypatch):
    clock, generations = collected
    monkeypatch.setattr(garbage._PROCESS, "has_trained", False)
    monkeypatch.setattr(garbage._PROCESS, "froze_imports", False)
    frozen = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: len(frozen))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(clock[0]))
    monkeypatch.setattr(gc, "unfreeze", frozen.clear)
    with manual_gc() as collect:
        for clock[0] in (1.0, 9.0, 11.0, 20.0):
            collect(2)
        assert frozen == [11.02]  # what the first full collection leaves
    assert (generations, frozen) == ([1, 1, 2, 2], [])
    with manual_gc():  # the model of the first run may be garbage
        assert generations[4:] == [2]
        assert len(frozen) == 1
