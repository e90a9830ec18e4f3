"""Each program runs in its own folder, and the sessions that it opened are closed."""

import pytest

from tests.twice import compare


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    while compare.OPENED:
        compare.OPENED.pop().close()
