"""Fixtures of the tests of searches."""

import pytest

from tests.postgres import postgres as postgres


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path_factory):
    """Record what is typed in a temporary folder; return it."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder
