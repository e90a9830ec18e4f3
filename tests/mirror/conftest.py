import pytest

from surestep.mirror import owner, push, uploader


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look at the run folder and at the mirror often.

    STALLED_S stays a minute, since a busy machine copies nothing for seconds; a test whose mirror
    never takes the rest sets less.
    """
    monkeypatch.setattr(uploader, "INTERVAL_S", 0.01)
    monkeypatch.setattr(uploader, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(push, "RECORDS_S", 0.1)
    monkeypatch.setattr(owner, "POLL_S", 0.01)
    monkeypatch.setattr(owner, "STALE_S", 0.2)
