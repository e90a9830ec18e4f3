import json
import os
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from surestep.cli.main import main
from surestep.record.run import Run
from surestep.tuning import process, trial
from surestep.tuning.channel import Channel
from surestep.tuning.process import StopRequests, TrialProcess
from surestep.tuning.trial import WorkerLink
from tests import tiny

RECIPE = str(Path(__file__).with_name("recipe.py"))


class Worker:
    """A worker of one trial; `at(number)` is called at each evaluation, and may prune."""

    def __init__(self, folder, **options):
        self.run = folder / "0003"
        self.stops = None
        self.timeout_s = None
        self.seen, self.planned, self.at = [], set(), lambda number: False
        self.job = {
            "do": "train",
            "recipe": RECIPE,
            "options": {"task.hidden": 6, **options},
            "locations": {},
            "run": str(self.run),
            "study": None,
        }

    def train(self, nproc=1):
        """Run the trial in a new process."""
        log = self.run.with_suffix(".log")
        environment = {"OMP_NUM_THREADS": "1"}
        with StopRequests(self.timeout_s) as self.stops:
            return TrialProcess(self.job, log, nproc, environment, self._answer, self.stops).run()

    def _answer(self, evaluations):
        self.seen += [(report["number"], report["step"]) for report in evaluations]
        self.planned |= {report["of"] for report in evaluations}
        return self.at(self.seen[-1][0])

    def stop(self, number, reason="SIGTERM"):
        """Stop; at the second evaluation, wait until the run has got the signal.

        A launcher forwards it after a while, in which the run could end.
        """
        self.stops.stop(reason)
        end = time.monotonic() + 120
        log = self.run.with_suffix(".log")
        while number > 1 and "stopping after this step" not in log.read_text():
            assert time.monotonic() < end
            time.sleep(0.01)

    @property
    def pid(self):
        """The process of the trial."""
        return json.loads((self.run / "lock").read_text())["pid"]


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path)


def numbers(run):
    """Return the losses and the metrics of a run, in order."""
    events = list(Run(run).events())
    steps = {}
    for event in events:
        if event["event"] == "steps":
            steps |= dict(enumerate(event["loss"], event["first"]))
    metrics = {
        event["step"]: event["metrics"] for event in events if event["event"] == "evaluation"
    }
    return steps, metrics


def test_trial_is_a_run_that_the_other_commands_read(worker, capsys):
    ended = worker.train()
    assert worker.seen == [(1, 3), (2, 6), (3, 9), (4, 12)]
    run = Run(worker.run)
    assert run.config["task"] == {"hidden": 6}
    assert ended.result["step"] == run.best.step
    assert ended.result["metrics"]["val/loss"] == run.best.metrics["val/loss"]
    assert ended.result["metrics"]["parameters"] == 4 * 6 + 6 + 6 * 3 + 3
    assert (ended.result["pruned"], ended.result["last_step"], ended.reason) == (False, 12, "")
    assert main(["runs", str(worker.run.parent), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["recipe"], row["step"]) == ("finished", "recipe", 12)
    assert main(["evaluate", str(worker.run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    assert found["val/loss"] == pytest.approx(ended.result["metrics"]["val/loss"], abs=1e-6)
    assert main(["resume", str(worker.run)]) == 0


@pytest.mark.parametrize(
    ("validation", "evaluations"),
    [
        ({}, 4),
        ({"every": "5 steps"}, 3),
        ({"every": "5 steps", "on_start": True}, 4),
        ({"every": "24 items"}, 4),
    ],
)
def test_worker_learns_how_many_evaluations_a_trial_makes(tmp_path, validation, evaluations):
    worker = Worker(tmp_path, **{f"validation.{name}": way for name, way in validation.items()})
    worker.train()
    assert len(worker.seen) == evaluations
    assert worker.planned == {evaluations}


def test_each_trial_has_its_own_mirror(worker, tmp_path):
    mirror = tmp_path / "mirror"
    worker.job |= {"study": "digits"}
    worker.job["options"]["checkpoint.mirror"] = str(mirror)
    worker.train()
    copied = mirror / "digits" / tmp_path.name / "0003"
    assert Run(copied).last.step == Run(worker.run).last.step


def test_same_trial_in_another_folder_is_bitwise_equal(tmp_path):
    first, second = Worker(tmp_path / "a"), Worker(tmp_path / "b")
    for worker in (first, second):
        worker.run.parent.mkdir()
        assert worker.train().result is not None
    assert numbers(first.run) == numbers(second.run)


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_pruned_trial_ends_at_the_evaluation_that_pruned_it(tmp_path, strategy):
    single = strategy == "single"
    worker = Worker(tmp_path, **({} if single else {"parallel.strategy": strategy}))
    worker.at = lambda number: number == 2
    ended = worker.train(nproc=1 if single else 2)
    assert ended.reason == ""
    assert (ended.result["pruned"], ended.result["last_step"]) == (True, 6)
    assert worker.seen == [(1, 3), (2, 6)]
    status = Run(worker.run).status
    assert (status["status"], status["step"]) == ("finished", 6)
    assert status["reason"] == "pruned by the search after step 6"
    assert max(numbers(worker.run)[0]) == 6


def test_run_of_a_pruned_trial_stays_pruned(worker):
    worker.at = lambda number: number == 1
    worker.train()
    worker.at = lambda number: False
    assert worker.train().result["pruned"]
    assert Run(worker.run).status["step"] == 3


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (
            {"task.ends": "raises"},
            "RecipeError: .*recipe.py, line [0-9]+: ValueError: this recipe always fails",
        ),
        ({"task.ends": "nan"}, "NonFiniteError: .*not finite"),
        ({"task.ends": "no_memory"}, "OutOfMemoryError: "),
        ({"optim.lr": -1.0}, "ConfigError: .*optim.lr"),
    ],
)
def test_failed_trial_has_its_reason(tmp_path, option, reason):
    ended = Worker(tmp_path, **option).train()
    assert ended.result is None
    assert not ended.stopped
    assert re.match(reason, ended.reason), ended.reason


def test_killed_trial_has_its_signal_and_its_log_as_reason(worker):
    worker.at = lambda number: os.kill(worker.pid, signal.SIGKILL)
    ended = worker.train()
    assert ended.result is None
    assert not ended.stopped
    assert ended.reason.startswith("killed by SIGKILL (the system does so if memory runs out); see")


def test_failure_of_a_rank_is_the_reason_of_the_trial(tmp_path):
    worker = Worker(tmp_path, **{"task.ends": "nan", "parallel.strategy": "ddp"})
    assert worker.train(nproc=2).reason.startswith("NonFiniteError: ")


@pytest.mark.parametrize("nproc", [1, 2])
def test_stopped_trial_saves_and_resumes_as_if_it_had_not_stopped(tmp_path, nproc):
    whole, worker = Worker(tmp_path / "whole"), Worker(tmp_path / "stopped")
    whole.run.parent.mkdir()
    worker.run.parent.mkdir()
    expected = whole.train(nproc)
    worker.at = worker.stop
    assert worker.train(nproc).stopped
    assert Run(worker.run).status["status"] == "stopped"
    reported = len(worker.seen)
    worker.seen, worker.at = [], lambda number: False
    ended = worker.train(nproc)
    assert worker.seen == [(1, 3), (2, 6), (3, 9), (4, 12)]
    assert 0 < reported < 4
    assert numbers(worker.run) == numbers(whole.run)
    for name in ("val/loss", "val/accuracy", "parameters"):
        assert ended.result["metrics"][name] == expected.result["metrics"][name]


def test_resumed_trial_can_be_pruned_by_an_evaluation_before_it_stopped(worker):
    worker.at = worker.stop
    worker.train()
    at = Run(worker.run).last.step
    worker.at = lambda number: True
    ended = worker.train()
    assert ended.result is not None, (ended, worker.stops.reason)
    assert (ended.result["pruned"], ended.result["last_step"]) == (True, at)


@pytest.mark.parametrize("nproc", [1, 2])
def test_trial_whose_worker_died_saves_and_stops(worker, nproc, monkeypatch):
    channels = []

    class Seen(Channel):
        def __init__(self, connection):
            super().__init__(connection)
            channels.append(self)

    monkeypatch.setattr("surestep.tuning.process.Channel", Seen)

    def vanish(number):
        for channel in channels:
            with suppress(OSError):
                channel._socket.shutdown(socket.SHUT_RDWR)

    worker.at = vanish
    assert worker.train(nproc).stopped
    status = Run(worker.run).status
    assert (status["status"], status["reason"]) == ("stopped", "SIGTERM")
    assert Run(worker.run).last.step == status["step"] < 12


def test_process_whose_worker_is_gone_gets_its_signal_before_each_empty_answer(monkeypatch):
    order, answers = [], []

    class Noted(SimpleQueue):
        def put(self, item):
            order.append("answer")
            super().put(item)

    monkeypatch.setattr(trial, "SimpleQueue", Noted)
    monkeypatch.setattr(os, "kill", lambda *_: order.append("signal"))
    own, others = socket.socketpair()
    link = WorkerLink(Channel(own))
    others.close()
    assert link.ask({}) == {}
    assert order[0] == "signal"
    again = threading.Thread(target=lambda: answers.append(link.ask({})), daemon=True)
    again.start()
    again.join(60)
    link.close()
    assert answers == [{}]


def test_process_that_hangs_after_its_worker_is_gone_kills_itself(monkeypatch):
    sent = SimpleQueue()
    monkeypatch.setattr(trial, "LONGEST_SAVE_S", 0.01)
    monkeypatch.setattr(os, "kill", lambda _, number: sent.put(number))
    own, others = socket.socketpair()
    link = WorkerLink(Channel(own))
    others.close()
    assert [sent.get(timeout=60) for _ in range(2)] == [signal.SIGTERM, signal.SIGKILL]
    link.close()


def test_second_ctrl_c_ends_a_trial_that_does_not_save(worker):
    def stop_twice(number):
        worker.stop(number, "Ctrl-C")
        threading.Timer(0, worker.stops.stop, ["Ctrl-C"]).start()
        return False

    worker.at = stop_twice
    assert worker.train().stopped


def test_trial_is_stopped_when_its_time_is_over(tmp_path, monkeypatch):
    now = [0.0]

    def pass_time(number):
        now[0] += 2.0

    worker = Worker(tmp_path, max_steps=10_000_000)
    worker.timeout_s, worker.at = 4.0, pass_time
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert worker.train().stopped
    assert worker.stops.reason == "timeout"
    assert Run(worker.run).last.step >= 6


@pytest.mark.parametrize("test", [None, (tiny.data()[0],)])
def test_winner_without_test_targets_has_no_test_metrics(tmp_path, test):
    x, y = tiny.data()
    parts = {"val": (x, y), "test": test}
    tiny.fit(tmp_path / "r", parts, max_steps=1)
    call = SimpleNamespace(task=lambda: tiny.task(**parts), config=tiny.config(max_steps=1))
    assert trial._measure_test(call, {"run": str(tmp_path / "r")}) == {"test": None}
