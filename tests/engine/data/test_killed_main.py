"""What data workers leave when their main process is killed."""

import os
import tempfile
from multiprocessing import current_process
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from surestep.base import temp_folders
from surestep.base.errors import DataError
from surestep.engine.data import workers
from surestep.engine.data.failures import checked
from tests import tiny


class Samples(Dataset):
    """Kills the main process of the run when a worker has shared several batches with it."""

    def __init__(self, last):
        self.main, self.last = os.getpid(), last

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == self.last:
            os.kill(self.main, 9)
        return torch.zeros(4), 0


@pytest.fixture
def place(monkeypatch):
    """The folder for temporary files, of which this process has used none; with a short path."""
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        monkeypatch.setattr(temp_folders, "_own", {})
        config = current_process()._config
        monkeypatch.setattr(current_process(), "_config", {**config, "tempdir": None})
        yield Path(place)


def fit_in_fork(folder, last):
    """Train in a fork; return how it ended, once its workers have ended too."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            parts = {"train": Samples(last)}
            options = {"data": {"num_workers": 2, "shuffle": False}, "batch_size": 4}
            tiny.fit(folder, parts, **options, max_steps=16)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read() == b""  # no process has it any more
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_killed_run_with_workers_leaves_one_folder_that_the_next_start_removes(
    tmp_path, place, capfd
):
    left = set()
    for name in ("first", "second"):
        assert fit_in_fork(tmp_path / name, last=50) == -9
        (folder,) = place.iterdir()
        assert folder.name.startswith(temp_folders.PREFIX)
        left.add(folder)
    assert len(left) == 2
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("parent", "kind", "is_printed"),
    [
        (-1, ConnectionResetError, False),
        (os.getppid(), ConnectionResetError, True),
        (-1, ValueError, True),
    ],
)
def test_connection_that_broke_with_its_main_process_prints_no_traceback(
    monkeypatch, parent, kind, is_printed
):
    monkeypatch.setattr(workers, "POLL_S", 0.02)
    printed = []
    workers._print_error(parent, lambda *error: printed.append(error), kind, kind(), None)
    assert bool(printed) == is_printed


def test_batch_that_cannot_be_sent_is_replaced_by_its_error(monkeypatch):
    printed, sent = [], []
    monkeypatch.setattr("sys.excepthook", lambda *error: printed.append(error))
    queue = type("Queue", (), {"put": lambda self, item: sent.append(item)})()
    workers._send_error(queue, TypeError("cannot pickle"), (3, object()))
    ((number, failed),) = sent
    assert (number, printed) == (3, [])
    with pytest.raises(DataError, match="could not send its batch: TypeError: cannot pickle"):
        checked(failed)
    for error, item in ((BrokenPipeError(), (3, object())), (TypeError(), (3, failed))):
        workers._send_error(queue, error, item)
    assert (len(sent), len(printed)) == (1, 2)
