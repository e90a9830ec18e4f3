from types import SimpleNamespace

import pytest

from surestep.trainer.review import data_case


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of the checks of data: it stands still unless data of a test moves it."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(data_case, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock
