import pytest

from surestep.mirror import owner, push, uploader


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look at the run folder often, and do not wait long for a mirror that fails."""
    monkeypatch.setattr(uploader, "INTERVAL_S", 0.01)
    monkeypatch.setattr(uploader, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(uploader, "STALLED_S", 2.0)
    monkeypatch.setattr(push, "RECORDS_S", 0.1)
    monkeypatch.setattr(owner, "POLL_S", 0.01)
    monkeypatch.setattr(owner, "STALE_S", 0.2)
