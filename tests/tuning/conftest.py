"""Fixtures of the tests of searches."""

import pytest

from tests.postgres import postgres as postgres


@pytest.fixture(autouse=True)
def start_trials_warm(warm_python):
    """Let trials be forks of a process that has imported torch."""
