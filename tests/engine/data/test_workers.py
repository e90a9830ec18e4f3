"""Data workers that die, and main processes that die while workers run."""

import gc
import json
import multiprocessing
import os
import re
import signal
import subprocess
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import surestep
from surestep.base.errors import DataError, WorkerError
from surestep.engine import private
from surestep.engine.data.workers import Loader
from surestep.record.run import Run
from tests import tiny
from tests.warm import warm_python

ROOT = Path(__file__).parents[3]
# The checks of the data before a run would start a worker, which dies once.
UNCHECKED = {"check_data": "off"}
SAID = {"max_steps": 6, "batch_size": 5, "data": {"num_workers": 2}}


class Rows(Dataset):
    """Random samples; the worker that loads sample `dies` in epoch 0 dies once."""

    def __init__(self, flag: Path | None = None, dies: int = 7, how: int = signal.SIGKILL) -> None:
        self.x, self.y = tiny.data()
        self.flag, self.dies, self.how = flag, dies, how

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if index == self.dies:
            self.die()
        return self.x[index] + torch.randn(4) / 100, self.y[index]

    def die(self):
        if self.flag is not None and not self.flag.exists() and get_worker_info() is not None:
            self.flag.touch()
            if self.how == 0:
                os._exit(3)
            os.kill(os.getpid(), self.how)
            time.sleep(60)


class Stream(Rows, IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, len(self.x), step):
            # The first samples are read three times before the run to check that they repeat.
            if index == self.dies and (self.flag is None or self.flag.with_suffix(".run").exists()):
                self.die()
            yield self.x[index] + torch.randn(4) / 100, self.y[index]


class Marks(surestep.Callback):
    """Tells the stream that the run has started."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag.with_suffix(".run")

    def on_start(self, state):
        self.flag.touch()


def fit(folder, train, **said):
    torch.manual_seed(0)
    task = tiny.task(train=train, model=tiny.model(dropout=0.2))
    flag = train.dataset.flag if isinstance(train, DataLoader) else train.flag
    marks = [] if flag is None else [Marks(flag)]
    config = tiny.config(**{"doctor": UNCHECKED, **SAID, **said})
    return surestep.Trainer(task, config, run=folder, callbacks=marks).fit()


def weights(run: Run):
    net = tiny.model()
    run.load_model(net, which="last")
    return torch.cat([each.flatten() for each in net.state_dict().values()])


def workers_left() -> list[int]:
    """Return the data workers of this process that are alive."""
    return [each.pid for each in multiprocessing.active_children()]


@pytest.mark.parametrize("kind", [Rows, Stream])
def test_killed_worker_is_named_and_the_run_is_saved_and_resumable(tmp_path, kind):
    dying = kind(tmp_path / "died")
    loaders = [DataLoader(each, 5, num_workers=2, shuffle=kind is Rows) for each in (dying, kind())]
    said: dict = {"data": {}, "batch_size": None}
    with pytest.raises(WorkerError, match=r"was killed, possibly by the kernel .* \(pid") as died:
        fit(tmp_path / "r", loaders[0], **said)
    assert "SIGKILL" in str(died.value)
    assert "on the host (RSS)" in str(died.value)
    assert "data.num_workers=2" in str(died.value)
    assert workers_left() == []
    status, last = Run(tmp_path / "r").status, Run(tmp_path / "r").last
    assert (status["status"], status["resumable"]) == ("failed", True)
    assert last.step == status["step"]
    assert f"Saved as {last.path}." in died.value.__notes__
    resumed, whole = (
        fit(tmp_path / "r", loaders[0], **said),
        fit(tmp_path / "w", loaders[1], **said),
    )
    assert torch.equal(weights(resumed), weights(whole))


def test_worker_killed_in_an_evaluation_loses_no_step(tmp_path):
    def run(folder, val):
        torch.manual_seed(0)
        task = tiny.task(val=DataLoader(val, 5, num_workers=2), model=tiny.model(dropout=0.2))
        return surestep.Trainer(task, tiny.config(max_steps=6, doctor=UNCHECKED), run=folder).fit()

    with pytest.raises(WorkerError, match="SIGKILL"):
        run(tmp_path / "r", Rows(tmp_path / "died"))
    assert Run(tmp_path / "r").find_checkpoint("last") is not None
    resumed, whole = run(tmp_path / "r", Rows()), run(tmp_path / "w", Rows())
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.last.metrics == whole.last.metrics


@pytest.mark.parametrize(
    ("how", "named"),
    [
        (signal.SIGBUS, "shared memory may be full"),
        (signal.SIGSEGV, "SIGSEGV"),
        (0, "exit code 3"),
    ],
)
def test_error_reports_how_a_worker_ended(tmp_path, how, named):
    with pytest.raises(WorkerError, match=named):
        fit(tmp_path / "r", Rows(tmp_path / "died", how=how))


def test_too_low_limit_of_open_files_is_an_error_before_workers_start(tmp_path, monkeypatch):
    limits = lambda which: (24, 4096)  # noqa: E731
    monkeypatch.setattr("resource.getrlimit", limits)
    with pytest.raises(DataError, match=r"num_workers=2 needs about \d+ open files.*limit.* is 24"):
        fit(tmp_path / "r", Rows())


def test_exception_in_a_worker_is_not_reported_as_a_dead_worker(tmp_path):
    class Broken(Rows):
        def __getitem__(self, index):
            raise RuntimeError("mine")

    with pytest.raises(DataError, match=r"Sample \d+ of the train data .*RuntimeError: mine \("):
        fit(tmp_path / "r", Broken())
    assert workers_left() == []


@contextmanager
def without_waiting(monkeypatch):
    """Assert that a block does not wait for workers until a limit of torch or of `close`."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 300.0)
        patch.setattr(private.WorkerIterator._try_get_data, "__defaults__", (300.0,))
        patch.setattr(Loader.close, "__defaults__", (300.0,))
        started = time.monotonic()
        yield
        assert time.monotonic() - started < 200


class KillsWorkers(surestep.Callback):
    """Kills a worker in the middle of a step."""

    def on_backward(self, state):
        if state.progress.step == 1:
            pid = workers_left()[0]
            os.kill(pid, signal.SIGKILL)
            # When it is dead, the handler of SIGCHLD runs here; torch's would raise.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_step_completes_if_a_worker_dies_during_it(tmp_path, monkeypatch):
    torch.manual_seed(0)
    kills = KillsWorkers()
    task = tiny.task(train=Rows(), model=tiny.model(dropout=0.2))
    with without_waiting(monkeypatch), pytest.raises(WorkerError):
        surestep.Trainer(task, tiny.config(**SAID), run=tmp_path / "r", callbacks=[kills]).fit()
    assert Run(tmp_path / "r").last.step == 2
    resumed, whole = fit(tmp_path / "r", Rows()), fit(tmp_path / "w", Rows())
    assert torch.equal(weights(resumed), weights(whole))


class Hangs(Rows):
    """The last worker starts a process and then hangs without loading a sample."""

    def __init__(self, pids: Path) -> None:
        super().__init__()
        self.pids = pids

    def __getitem__(self, index):
        info = get_worker_info()
        if info is not None and info.id == info.num_workers - 1:
            own = subprocess.Popen(["sleep", "600"]).pid
            self.pids.write_text(json.dumps([os.getpid(), own]))
            time.sleep(600)
        return super().__getitem__(index)


TRAIN = textwrap.dedent(
    """
    import os, posix, sys
    from pathlib import Path
    if __name__ == "__main__":
        os.getppid = posix.getppid  # the warm Python's is that of its client, in workers too
        import surestep
        from torch.utils.data import DataLoader
        from tests import tiny
        from tests.engine.data.test_workers import Hangs
        folder, start, workers = sys.argv[1:]
        data = Hangs(Path(folder) / "pids")
        loader = DataLoader(data, 5, num_workers=int(workers), multiprocessing_context=start)
        task = tiny.task(train=loader)
        session = surestep.prepare(task, tiny.config(batch_size=None), run=Path(folder) / "run")
        print(list(session.steps()))
    """
)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def until(holds, most_s: float) -> bool:
    end = time.monotonic() + most_s
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds())


@pytest.mark.parametrize(
    ("start", "workers", "number"),
    [("fork", 2, "SIGKILL"), ("spawn", 1, "SIGKILL"), ("fork", 2, "SIGINT")],
)
def test_no_worker_outlives_its_main_process(tmp_path, start, workers, number):
    (tmp_path / "train.py").write_text(TRAIN)
    main = subprocess.Popen(
        [warm_python(), str(tmp_path / "train.py"), str(tmp_path), start, str(workers)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        stderr=subprocess.DEVNULL,
    )

    def found() -> list[int]:
        text = "".join(each.read_text() for each in tmp_path.glob("pids"))
        return list(json.loads(text)) if text else []

    try:
        assert until(found, 120)
        main.send_signal(signal.Signals[number])
        main.wait(60)
        assert until(lambda: not any(map(alive, found())), 60), found()
    finally:
        main.kill()
        for pid in filter(alive, found()):
            os.kill(pid, signal.SIGKILL)


def test_workers_of_a_dataloader_in_a_reference_cycle_end_at_once(monkeypatch):
    loader = Loader(Rows(), 2, num_workers=2, multiprocessing_context="fork")
    loader.epoch = iter(loader)  # the cycle: the iterator refers to its loader
    next(loader.epoch)
    workers = loader._pass.workers
    assert all(each.is_alive() for each in workers)
    with without_waiting(monkeypatch):  # through closed queues, each of two would
        del loader
        gc.collect()
    # Two threads wait for them, and the later one notices the end a moment later.
    assert until(lambda: not any(each.is_alive() for each in workers), 60)


def test_interrupt_while_workers_shut_down_leaves_no_worker(monkeypatch):
    loader = Loader(Rows(), num_workers=1)
    next(iter(loader))
    (worker,) = loader._pass.workers

    def join(thread, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", join)
        with pytest.raises(KeyboardInterrupt):
            loader.close()
    # Two threads wait for it, and the later one notices the end a moment later.
    assert until(lambda: not worker.is_alive(), 60)
    assert loader._pass is None


STUCK = textwrap.dedent(
    """
    import os, sys, time
    import surestep
    from surestep.base.errors import WorkerError
    from surestep.engine import private
    from surestep.engine.data import workers
    from tests import tiny
    from tests.engine.data.test_workers import Rows
    folder, forks = sys.argv[1], []
    os.register_at_fork(
        before=lambda: forks.append(1),
        after_in_child=lambda: len(forks) == 2 and time.sleep(600),
    )
    workers._BEGIN_S = 1.0
    options = {"data.num_workers": 2, "max_steps": 3, "batch_size": 4}
    config = surestep.Config.from_options({**options, "logging.progress": "quiet"})
    try:
        surestep.Trainer(tiny.task(train=Rows()), config, run=folder).fit()
    except WorkerError as error:
        print(error)
    """
)


def test_worker_that_never_starts_is_named_and_killed(tmp_path):
    done = subprocess.run(
        [warm_python(), "-c", STUCK, str(tmp_path / "run")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=300,  # half of the time for which the worker sleeps
        check=False,
    )
    assert "A data worker did not begin within 1 s" in done.stdout, done.stderr
    pid = int(re.search(r"pid (\d+)", done.stdout)[1])
    assert not alive(pid)
