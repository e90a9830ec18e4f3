"""Data workers that cannot start: what is wrong, and what to do."""

import multiprocessing
import subprocess
import threading
from dataclasses import replace

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset

import surestep
from surestep.base.errors import ConfigError, DataError
from surestep.engine.data.workers import Loader, _describe
from surestep.engine.resolve.resolver import resolve
from tests import tiny
from tests.warm import warm_python


class Rows(Dataset):
    def __init__(self, change=None):
        self.change = change
        self.x, self.y = tiny.data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Stream(Rows, IterableDataset):
    def __iter__(self):
        return zip(self.x, self.y, strict=True)


def fit(folder, **parts):
    size = None if isinstance(parts.get("train"), DataLoader) else 8
    config = tiny.config(max_steps=2, batch_size=size, doctor={"check_data": "off"})
    surestep.Trainer(tiny.task(**parts), config, run=folder).fit()


def spawned(data, num_workers=2, **options):
    options |= {"num_workers": num_workers, "multiprocessing_context": "spawn"}
    return DataLoader(data, 8, **options)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: spawned(Rows(lambda x: x)), "lambda"),
        (lambda: spawned(Rows(), collate_fn=lambda samples: samples), "lambda"),
        (lambda: spawned(Stream(lambda x: x)), "lambda"),
        (lambda: spawned(type("Local", (Rows,), {"__qualname__": "f.<locals>.Local"})()), "Local"),
        (lambda: spawned(Rows(threading.Lock())), "cannot pickle '_thread.lock' object"),
    ],
    ids=["lambda", "collate_fn", "stream", "local class", "lock"],
)
@pytest.mark.parametrize("part", ["train", "val"])
def test_data_that_spawned_workers_cannot_get_is_named(tmp_path, make, named, part):
    with pytest.raises(DataError) as caught:
        fit(tmp_path, **{part: make()})
    assert named in str(caught.value)
    assert "Data workers are started by 'spawn'" in str(caught.value)
    assert "at the top level of a module" in str(caught.value)
    assert "data.num_workers=0" in str(caught.value)


def test_error_of_the_users_own_pickling_is_not_explained():
    class Own(Rows):
        def __reduce__(self):
            raise AttributeError("mine")

    with pytest.raises(AttributeError, match="mine"):
        iter(Loader(Own(), num_workers=1, multiprocessing_context="spawn")).__next__()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_daemon_cannot_start_workers(tmp_path, monkeypatch, start):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    loader = DataLoader(Rows(), 8, num_workers=1, multiprocessing_context=start)
    for parts in ({"train": loader}, {"val": loader}):
        with pytest.raises(DataError, match=r"a daemon .* Use data\.num_workers=0, or .*daemon=Fa"):
            fit(tmp_path, **parts)


def test_daemon_trains_without_workers_by_default(monkeypatch):
    config = surestep.Config(epochs=1, device="cuda")
    assert resolve(config, tiny.GPU, tiny.GIVEN).data_num_workers > 0
    planned = resolve(config, replace(tiny.GPU, is_daemon=True), tiny.GIVEN)
    assert planned.data_num_workers == 0
    assert "daemon" in planned.reason("data.num_workers")
    assert "daemon" not in resolve(config, tiny.GPU, tiny.GIVEN).reason("data.num_workers")


def test_process_that_imports_the_script_starts_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ConfigError, match="under if __name__ == '__main__':"):
        fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Ended:
    pid, exitcode = 7, 1


def test_main_guard_is_named_only_if_workers_import_the_script():
    assert "__main__" in _describe(Ended, 2, set(), imports_script=True)
    assert "__main__" not in _describe(Ended, 2, set(), imports_script=False)
    Ended.exitcode = 3
    assert "__main__" not in _describe(Ended, 2, set(), imports_script=True)


SCRIPT = """
import torch
from torch.utils.data import DataLoader
import surestep
from tests import tiny
from tests.engine.data.test_worker_start import fit, spawned, Rows

fit("run", train=spawned(Rows(), num_workers=1))
"""


@pytest.mark.slow("spawns data workers")
def test_script_without_a_main_guard_gets_an_error_that_names_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [warm_python(), str(script)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    in_worker, in_script = ran.stderr.split("WorkerError: ")
    assert "surestep.base.errors.ConfigError: A new process of multiprocessing" in in_worker
    assert "under if __name__ == '__main__':" in in_script
    assert "locked" not in ran.stderr


THREAD = RuntimeError("can't start new thread")


def deny(error):
    def start(*_):
        raise error

    return start


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("os.fork", OSError(12, "Cannot allocate memory")),
        ("os.fork", BlockingIOError(11, "Resource temporarily unavailable")),
        ("surestep.engine.data.workers._Pass.__init__", THREAD),  # that pins batches
    ],
    ids=["memory", "processes", "thread"],
)
def test_worker_that_the_system_does_not_start_is_explained(monkeypatch, target, error):
    loader = Loader(Rows(), 8, num_workers=1, multiprocessing_context="fork")
    monkeypatch.setattr(target, deny(error))
    with pytest.raises(DataError, match=r"does not start data\.num_workers=1: ") as caught:
        next(iter(loader))
    assert f"num_workers=1: {error.args[-1]}. Use data.num_workers=0" in str(caught.value)
    assert "This process has" in str(caught.value)


def test_workers_end_without_memory_for_a_thread(monkeypatch):
    loader = Loader(Rows(), 8, num_workers=1, multiprocessing_context="fork")
    reader = iter(loader)
    next(reader)
    (worker,) = loader._pass.workers
    monkeypatch.setattr("threading.Thread.start", deny(THREAD))
    loader.close()
    assert not worker.is_alive()
