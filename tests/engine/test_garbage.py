"""What an import makes is never walked by the collector, in the process of a command alone."""

import gc
import subprocess
import sys

import pytest

from surestep.engine.garbage import import_without_collecting

NEW_PROCESS = """
import gc
from surestep.engine.garbage import import_without_collecting

seen = []
gc.callbacks.append(lambda phase, about: seen.append(phase))
for module in ("torch", "torch.fx"):
    with import_without_collecting():
        assert not gc.isenabled()
        __import__(module)
    assert gc.isenabled()
    print(len(seen), len(gc.get_objects()) < 1000, gc.get_freeze_count() > 100_000)
"""


def test_a_new_process_imports_torch_without_a_collection():
    done = subprocess.run(
        [sys.executable, "-c", NEW_PROCESS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "True", "True"] * 2


@pytest.fixture
def collecting():
    """The collector of a usual process, which the tests run without."""
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    if not was_enabled:
        gc.disable()


@pytest.mark.usefixtures("collecting")
def test_a_process_that_has_torch_is_left_alone(monkeypatch):
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("frozen"))
    assert "torch" in sys.modules
    with import_without_collecting():
        assert gc.isenabled()
