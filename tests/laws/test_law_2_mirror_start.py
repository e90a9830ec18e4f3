"""Law 2: a start with a mirror that is killed at any file event, or fails, works when repeated."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import surestep
from surestep.base.errors import CheckpointError, RunError
from surestep.cli.mirror import run as push
from surestep.mirror.link import MirrorLink
from surestep.mirror.owner import read_owner
from surestep.mirror.store import Store
from tests.laws.support.tasks import rows, session_of

OPTIONS: dict[str, Any] = {"max_steps": 2, "batch_size": 8}
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
_MOST = 400  # events of a start, which has about 120
_FEW = 17  # a quick test kills at each of so many


def task_of() -> surestep.Task:
    return surestep.Task(nn.Linear(10, 3), nn.CrossEntropyLoss(), rows(24))


def start(place: Path, run: str | Path) -> None:
    """Start a run with a mirror in this folder, or resume it; take no step."""
    checkpoint = {} if run == address(place) else {"checkpoint": {"mirror": str(place / "mirror")}}
    session_of(task_of(), run, **OPTIONS, **checkpoint).close()  # type: ignore[arg-type]


def address(place: Path) -> str:
    return f"file://{place}/mirror"


def fork(place: Path, act: Callable[[], object]) -> int:
    """Run a function in a fork; return its exit code."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.chdir(place)
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_at(place: Path, number: int) -> None:
    """Kill this process at an event that changes a file in a folder."""
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if event in EVENTS and str(args[0]).startswith(str(place)):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def kill_and_repeat(place: Path, run: str | Path, number: int) -> bool:
    """Kill a start at one event, and repeat it; return False if it has no such event."""
    place.mkdir()

    def be_killed() -> None:
        kill_at(place, number)
        start(place, run)

    code = fork(place, be_killed)
    assert code in (0, -signal.SIGKILL)
    with chdir(place):  # in this process: a fork would take twice as long
        start(place, run)
    assert (place / "mirror" / "config.json").is_file()
    found = read_owner(Store(str(place / "mirror")))
    assert found is not None
    assert (found["writer"], found.get("started")) == (None, True)
    return code != 0


@pytest.mark.parametrize(
    ("is_address", "every"),
    [
        (False, _FEW),
        pytest.param(False, 1, marks=pytest.mark.slow("kills a hundred starts")),
        pytest.param(True, 1, marks=pytest.mark.slow("kills fifty starts")),
    ],
)
def test_start_that_is_killed_at_any_file_event_works_when_repeated(
    tmp_path: Path, is_address: bool, every: int
) -> None:
    start(tmp_path / "first", tmp_path / "first" / "run")  # here, so that no fork imports again
    for number in range(1, _MOST, every):
        place = tmp_path / str(number)
        run = address(place) if is_address else place / "run"
        if not kill_and_repeat(place, run, number):
            break
    assert 30 < number < _MOST - every


def test_start_that_fails_leaves_its_mirror_to_the_corrected_command(tmp_path: Path) -> None:
    config = surestep.Config(
        **OPTIONS, checkpoint=surestep.Checkpoint(mirror=str(tmp_path / "mirror"))
    )
    for name in ("run", "run", "other"):
        with pytest.raises(CheckpointError, match="resume is 'must'"):
            surestep.prepare(task_of(), config, run=tmp_path / name, resume="must")
        assert (tmp_path / "mirror" / "mirror.json").is_file()
    start(tmp_path, tmp_path / "run")
    with pytest.raises(RunError, match="has another run already"):
        start(tmp_path, tmp_path / "other")


def test_push_that_is_killed_before_the_run_folder_has_its_mirror_works_when_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_of(task_of(), tmp_path / "run", **OPTIONS).close()
    words = ["push", str(tmp_path / "run"), "--to", str(tmp_path / "mirror")]
    with monkeypatch.context() as patch:
        patch.setattr(
            MirrorLink, "write", lambda self, folder: os.kill(os.getpid(), signal.SIGKILL)
        )
        assert fork(tmp_path, lambda: push(words)) == -signal.SIGKILL
    assert (tmp_path / "mirror" / "mirror.json").is_file()
    assert push(words) == 0
