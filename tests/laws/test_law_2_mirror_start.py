"""Law 2: a start with a mirror that is killed at any file event, or fails, works when repeated."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import CheckpointError, RunError
from surestep.cli.mirror import run as push
from surestep.mirror.link import MirrorLink
from surestep.mirror.owner import read_owner
from surestep.mirror.store import Store
from surestep.record.checkpoint.manifest import MANIFEST
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot

OPTIONS: dict[str, Any] = {"max_steps": 2, "batch_size": 8}
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
_MOST = 400  # events of a start, which has about 120
_FEW = 17  # the quick test kills at each of so many


def task_of() -> surestep.Task:
    return surestep.Task(nn.Linear(10, 3), nn.CrossEntropyLoss(), rows(24))


def start(place: Path, run: str | Path) -> None:
    """Start a run with a mirror in this folder, or resume it; take no step."""
    checkpoint = {} if run == address(place) else {"checkpoint": {"mirror": str(place / "mirror")}}
    session_of(task_of(), run, **OPTIONS, **checkpoint).close()  # type: ignore[arg-type]


def train(place: Path, run: str | Path, mirror: Path | None = None) -> dict[str, Any]:
    """Train, and save after each step; return the last state."""
    torch.manual_seed(0)
    checkpoint = {} if mirror is None else {"mirror": str(mirror)}
    with session_of(task_of(), run, **OPTIONS, checkpoint=checkpoint) as session:  # type: ignore[arg-type]
        for _ in session.steps():
            session.save()
    return snapshot(session)


def address(place: Path) -> str:
    return f"file://{place}/mirror"


@contextmanager
def leave(place: Path) -> Iterator[None]:
    """Go to a folder, and end this process after a block: with 0, or with 1 for an error."""
    code = 1
    try:
        os.chdir(place)
        yield
        code = 0
    finally:
        os._exit(code)


def fork(place: Path, act: Callable[[], object]) -> int:
    """Run a function in a fork; return its exit code."""
    if (pid := os.fork()) == 0:
        with leave(place):
            act()
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
    repeat(place, run)
    return code != 0


def repeat(place: Path, run: str | Path) -> None:
    """Start again, and check that the mirror has a run and no writer."""
    with chdir(place):  # in this process: a fork would take twice as long
        start(place, run)
    assert (place / "mirror" / "config.json").is_file()
    found = read_owner(Store(str(place / "mirror")))
    assert found is not None
    assert (found["writer"], found.get("started")) == (None, True)


def test_start_that_is_killed_works_when_repeated(tmp_path: Path) -> None:
    start(tmp_path / "first", tmp_path / "first" / "run")  # here, so that no fork imports again
    for number in range(1, _MOST, _FEW):
        place = tmp_path / str(number)
        if not kill_and_repeat(place, place / "run", number):
            break
    assert 30 < number < _MOST - _FEW


def stop_at_events(place: Path) -> None:
    """Stop this process, with all threads, at each event that changes a file in a folder."""

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in EVENTS and str(args[0]).startswith(str(place)):
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # at once: not os.kill

    sys.addaudithook(hook)


def content(place: Path) -> list[tuple[str, bytes | None]]:
    """Return the name of each file and folder, with what a file holds."""
    paths = sorted(place.rglob("*"))
    return [(str(path), path.read_bytes() if path.is_file() else None) for path in paths]


def copy_states(place: Path, act: Callable[[], object], copies: Path) -> tuple[int, int]:
    """Copy what a kill at each event of a function would leave; return the events and the copies.

    Events between which no file changes have one copy.
    """
    place.mkdir(exist_ok=True)
    if (pid := os.fork()) == 0:
        with leave(place):
            stop_at_events(place)
            act()
    events, states = 0, 0
    before: list[tuple[str, bytes | None]] | None = None
    while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED)[1]):
        events += 1
        if (now := content(place)) != before:
            states, before = states + 1, now
            shutil.copytree(place, copies / str(states), symlinks=True)
        os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(status) == 0
    return events, states


@pytest.mark.slow("repeats a hundred starts")
@pytest.mark.parametrize("is_address", [False, True])
def test_start_that_is_killed_at_any_file_event_works_when_repeated(
    tmp_path: Path, is_address: bool
) -> None:
    start(tmp_path / "first", tmp_path / "first" / "run")
    place = tmp_path / "place"
    run = address(place) if is_address else place / "run"
    events, states = copy_states(place, lambda: start(place, run), tmp_path / "copies")
    assert events > 50
    assert states > 20
    for number in range(1, states + 1):
        shutil.rmtree(place)
        (tmp_path / "copies" / str(number)).rename(place)
        repeat(place, run)


@pytest.mark.slow("repeats a hundred starts")
def test_machine_that_is_lost_at_any_file_event_of_a_copy_leaves_a_mirror_that_can_be_used(
    tmp_path: Path,
) -> None:
    """The same command continues, and another run takes the mirror if it has no checkpoint."""
    place = tmp_path / "place"
    whole = train(place, place / "run")
    words = ["push", str(place / "run"), "--to", f"{place}/mirror"]
    _, states = copy_states(place, lambda: push(words), tmp_path / "copies")
    counts = {False: 0, True: 0}
    for number in range(1, states + 1):
        shutil.rmtree(place)
        (tmp_path / "copies" / str(number)).rename(place)
        shutil.rmtree(place / "run")
        has_checkpoint = any(place.glob(f"mirror/checkpoints/*/{MANIFEST}"))
        counts[has_checkpoint] += 1
        shutil.copytree(place, tmp_path / "other" / "place")
        with chdir(place):
            assert_same(whole, train(place, address(place)))
        shutil.rmtree(place)
        (tmp_path / "other" / "place").rename(place)
        with pytest.raises(RunError, match="has another run") if has_checkpoint else nullcontext():
            assert_same(whole, train(place, place / "new", mirror=place / "mirror"))
    assert counts[False] > 20
    assert counts[True] > 5


def test_start_that_fails_leaves_its_mirror_to_the_corrected_command(tmp_path: Path) -> None:
    config = surestep.Config(
        **OPTIONS, checkpoint=surestep.Checkpoint(mirror=str(tmp_path / "mirror"))
    )
    for name in ("run", "run", "other"):
        with pytest.raises(CheckpointError, match="resume is 'must'"):
            surestep.prepare(task_of(), config, run=tmp_path / name, resume="must")
        assert (tmp_path / "mirror" / "mirror.json").is_file()
    train(tmp_path, tmp_path / "run", mirror=tmp_path / "mirror")
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
