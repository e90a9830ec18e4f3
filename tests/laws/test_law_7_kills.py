"""Law 7: once a checkpoint is published, kill -9 at any moment leaves one that verifies.

A save is killed before each of its system calls and within its files. The checkpoints on the disk
then verify, and the resumed run equals one that was never killed, bit for bit.
"""

from collections.abc import Callable
from pathlib import Path

from tests.torture.warm_process import ask

Folder = Callable[[], Path]
SIZES = [0, 1, 500, 1500, 2500, 4000]
LEAST_CALLS = 12  # folder, three files, their syncs, manifest, rename, deletion of the old one


def check_calls(folder: Folder, calls: list[int] | None = None) -> None:
    """Kill a save at each call, or at the given ones."""
    killed = ask("calls", folder=str(folder()), calls=calls)["killed"]
    _check(killed)
    assert len(killed) >= (len(calls) if calls else LEAST_CALLS)
    assert any(kill["left"] for kill in killed), "no kill left anything half done"


def check_sizes(folder: Folder) -> None:
    """Kill a save when a file exceeds some sizes."""
    killed = ask("sizes", folder=str(folder()), sizes=SIZES)["killed"]
    _check(killed)
    assert len(killed) == len(SIZES)


def _check(killed: list[dict]) -> None:
    assert [kill for kill in killed if kill["damaged"]] == []
    assert [kill for kill in killed if not kill["good"]] == []
    assert [kill for kill in killed if kill["different"]] == []


def test_save_killed_at_any_call_loses_nothing(folder):
    check_calls(folder)


def test_save_killed_within_a_file_loses_nothing(folder):
    check_sizes(folder)
