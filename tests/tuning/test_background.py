import io
import json
import signal
import subprocess
import time
from dataclasses import replace

import pytest

from surestep.tuning import background
from surestep.tuning.process import StopRequests
from surestep.tuning.worker import WorkerOptions
from tests.tuning.studies_on_disk import make_settings, make_study

pytestmark = pytest.mark.slow("starts processes")


@pytest.fixture
def started(monkeypatch):
    """Let each worker be a process that ends with its stdin; return those that were started."""
    found = []

    def start(given):
        json.dumps(given)
        worker = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        found.append(worker)
        return worker

    monkeypatch.setattr(background, "_start", start)
    return found


def wait_until(claim):
    end = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_killed_workers_are_reported_and_replaced_three_times(started, tmp_path, capfd):
    printed = ""

    def count_reports():
        nonlocal printed
        printed += capfd.readouterr().err
        return printed.count("A worker was killed by SIGKILL.")

    with (
        StopRequests() as stops,
        background.start_workers(2, make_study(tmp_path), None, WorkerOptions(), stops),
    ):
        for killed in range(4):
            started[-1].send_signal(signal.SIGKILL)
            wait_until(lambda killed=killed: count_reports() == killed + 1)
        assert len(started) == 2 + 3
        started[0].stdin.close()
    assert printed.count("Another one was started") == 3


def test_workers_that_end_by_themselves_are_not_replaced(started, tmp_path, capfd):
    with (
        StopRequests() as stops,
        background.start_workers(2, make_study(tmp_path), None, WorkerOptions(), stops),
    ):
        for worker in list(started):
            worker.stdin.close()
            worker.wait()
    assert len(started) == 2
    assert capfd.readouterr().err == ""


def test_recipe_is_the_one_that_was_typed_not_that_of_the_study(started, tmp_path, monkeypatch):
    settings, given, used = make_settings(), [], []
    make_study(tmp_path, settings=replace(settings, recipe={**settings.recipe, "path": "/evil.py"}))
    start = background._start
    monkeypatch.setattr(background, "_start", lambda found: given.append(found) or start(found))
    with (
        StopRequests() as stops,
        background.start_workers(1, make_study(tmp_path), None, WorkerOptions(), stops),
    ):
        started[0].stdin.close()
    monkeypatch.setattr(background.sys, "stdin", io.StringIO(json.dumps(given[0]) + "\n"))
    monkeypatch.setattr(background.Worker, "work", lambda worker, _: used.append(worker.study))
    assert background.main([]) == 0
    assert used[0].settings.recipe["path"] == "/formula.py"
