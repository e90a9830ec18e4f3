"""Law 7: an asynchronous save writes the state at the time of the request."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch import nn

import surestep
from surestep.record.checkpoint import writer as saver
from surestep.record.checkpoint.discovery import list_checkpoints
from tests.laws.support.tasks import Augmented, session_of, with_batchnorm

Folder = Callable[[], Path]
OPTIONS = {"max_steps": 20, "batch_size": 9, "average": {"kind": "ema"}}
LONG_S = 60.0  # ends a test that hangs


@contextmanager
def held_writer() -> Iterator[threading.Event]:
    """Block the checkpoint writer until the event is set."""
    let_go = threading.Event()
    write = saver.write_checkpoint

    def held(*args):
        assert let_go.wait(LONG_S)
        return write(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saver, "write_checkpoint", held)
        try:
            yield let_go
        finally:
            let_go.set()


def task() -> surestep.Task:
    return surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), Augmented())


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def written_at_once(folder: Path, step: int) -> dict[str, bytes]:
    with session_of(task(), folder, **OPTIONS, checkpoint={"async_save": False}) as session:
        for result in session.steps():
            if result.step == step:
                return files(session.save())
    raise AssertionError("too few steps")


def check_background(folder: Folder, workers: int = 0) -> None:
    """Request a save, train before a byte of it is written, and compare the files."""
    expected = written_at_once(folder(), 7)
    run = folder()
    data = {"num_workers": workers}
    with held_writer() as let_go, session_of(task(), run, **OPTIONS, data=data) as session:
        for result in session.steps():
            if result.step == 7:
                session.saving.save_async()
        assert session.state.progress.step == 20
        assert list_checkpoints(run / "checkpoints") == []
        let_go.set()
        session.saving.collect(wait=True)
    (path,) = list_checkpoints(run / "checkpoints")
    assert files(path) == expected


# Two workers: they are started again for each epoch, while the thread runs.
@pytest.mark.parametrize("workers", [0, 2])
def test_asynchronous_save_writes_the_same_bytes_as_a_synchronous_one(folder, workers):
    check_background(folder, workers)


def check_two_saves(folder: Folder) -> None:
    """Request a second save while the first is written: each holds its own step."""
    expected = [written_at_once(folder(), step) for step in (7, 8)]
    run = folder()
    with held_writer() as let_go, session_of(task(), run, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 7:
                session.saving.save_async()
                threading.Timer(0.05, let_go.set).start()
            if result.step == 8:
                session.saving.save_async()
                break
        session.saving.collect(wait=True)
    assert [files(path) for path in list_checkpoints(run / "checkpoints")] == expected


def test_second_save_waits_for_the_first(folder):
    check_two_saves(folder)
