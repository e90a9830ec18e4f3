"""Law 2: a run killed (-9) at random moments around its rollback equals one never killed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torture.warm_process import ask


def check_killed_back(folder: Callable[[], Path], *, async_save: bool = True) -> None:
    """Kill runs around their rollback, and compare with the run that was never killed."""
    result = ask("rollbacks", folder=str(folder()), async_save=async_save)
    assert result["different"] == []
    assert result["kills"] == 6
    assert result["again"] >= 1


@pytest.mark.parametrize("async_save", [True, False])
def test_run_killed_around_its_rollback_equals_one_never_killed(folder, async_save):
    check_killed_back(folder, async_save=async_save)
