"""`surestep tune` with real processes, on recipes whose speed is known."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import pytest

from surestep.base.errors import RunError
from surestep.base.processes import is_running, list_children
from surestep.recipes.load import call_recipe, load
from surestep.tuning.speed import measuring_process
from surestep.tuning.speed.interval import LOOKS
from surestep.tuning.speed.measurer import ProcessMeasurer
from surestep.tuning.speed.measuring_process import MeasuringFailed
from surestep.tuning.speed.tune import TuneOptions, run_tune

RECIPE = """
import os
import time

import torch
from torch import nn

import surestep


read_clock, waited_s = time.perf_counter, [0.0]
# Samples of this process take a time that no load of the machine reaches; those of workers none.
time.perf_counter = lambda: read_clock() + waited_s[0]


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep({sleep_s})
        waited_s[0] += {wait_s}
        x = torch.randn(4)
        return x, x.sum(0, keepdim=True)


config = surestep.Config(epochs={epochs}, batch_size=4, optim={{"name": "sgd", "lr": 0.01}})


def task(width: int = 1, fails: str = ""):
    if fails == "crash":
        os.kill(os.getpid(), 9)
    if fails == "hang":
        time.sleep(600)
    if fails == "memory":
        torch.empty(2**60)
    return surestep.Task(lambda: nn.Linear(4, width), loss="mse", train=Slow())
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a function that writes a recipe, and returns its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)  # which the recipe replaces

    def write(sleep_s=0.005, epochs=50, wait_s=0.0):
        path = tmp_path / "slow.py"
        path.write_text(RECIPE.format(sleep_s=sleep_s, epochs=epochs, wait_s=wait_s))
        return str(path)

    yield write
    sys.modules.pop("slow", None)


@pytest.fixture
def measurer(recipe, tmp_path):
    made = ProcessMeasurer(recipe(0.0), tmp_path / "log.txt", 1, 120.0)
    yield made
    made.close()


pytestmark = pytest.mark.slow("starts measuring processes")


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        ("crash", "killed by SIGKILL"),
        ("hang", "no answer for 5 s: it hangs"),
        ("memory", "memory"),
    ],
)
def test_options_that_fail_say_why_and_the_next_are_measured(measurer, fails, reason):
    measurer.describe({}, [])
    measurer.limit_s = 5.0 if fails == "hang" else 120.0
    started = time.monotonic()
    with (
        pytest.raises(MeasuringFailed, match=reason),
        measurer.open_pair({}, {"task.fails": fails}, is_process_wide=False),
    ):
        pass
    assert time.monotonic() - started < 300  # the recipe hangs for 600 s
    measurer.limit_s = 120.0
    with measurer.open_pair({}, {}, is_process_wide=False) as pair:
        assert pair.measure_round() > 0


def test_start_of_a_process_has_a_time_limit_of_its_own(measurer, monkeypatch):
    start = subprocess.Popen
    monkeypatch.setattr(measuring_process, "_START_S", 0.0)
    monkeypatch.setattr(subprocess, "Popen", lambda _, **more: start(["sleep", "60"], **more))
    with pytest.raises(MeasuringFailed, match="no answer for 0 s"):
        measurer.describe({}, [])


def test_difference_of_two_trainings_is_found_and_that_of_workers_is_none(measurer):
    assert measurer.find_difference({}, {"data.num_workers": 2}, 10) is None
    found = str(measurer.find_difference({}, {"optim.lr": 1e-92}, 3))
    assert found.startswith("At step 1, learning rate")


def test_shares_are_measured_with_workers_and_the_arm_continues(measurer):
    options = {"data.num_workers": 1}
    found = measurer.measure_shares(options)
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["lines"][0].startswith("A step takes")
    with measurer.open_pair(options, {}, is_process_wide=False) as pair:
        assert pair.measure_round() > 0


def test_parts_of_the_whole_run_are_measured_with_its_options(measurer):
    whole = measurer.measure_whole({"epochs": 3}, 0.1)
    assert (whole.steps, whole.evaluations) == (24, 0)
    assert 0 < whole.save_s < whole.total_s
    with measurer.open_pair({}, {}, is_process_wide=False) as pair:
        assert pair.measure_round() > 0


def test_losses_are_those_of_the_run(measurer):
    losses = measurer.train({"optim.lr": 1e-9}, 8)
    assert losses == measurer.train({"optim.lr": 1e-9, "data.num_workers": 1}, 8)
    assert losses != measurer.train({"optim.lr": 1e-9, "seed": 1}, 8)


def test_processes_are_compared_in_rounds_that_start_both_again(measurer):
    with measurer.open_pair({}, {"cpu_allocator": "default"}, is_process_wide=True) as pair:
        ratio = pair.measure_round()
    assert ratio == pair.step_s[1][0] / pair.step_s[0][0]
    assert min(pair.start_s) > 0


def test_workers_are_kept_and_proved_on_a_recipe_that_waits_for_its_data(recipe, tmp_path):
    before = set(list_children(os.getpid()))
    call = call_recipe(load(recipe(0.0, 200, wait_s=1.0)), {"task.width": 1}, {})
    result, folder = run_tune(call, TuneOptions(10.0, tmp_path / "t", ("workers",)))
    kept = [rung for rung in result.rungs if rung.outcome == "kept"]
    assert kept, [rung.reason for rung in result.rungs]
    assert all(rung.interval.high < 1 for rung in kept)
    assert kept[0].interval.rounds == LOOKS[0]
    assert kept[0].proof["steps"] >= 3
    assert kept[0].proof["difference"] is None
    assert result.shares["data"] > 0.5
    written = tomllib.loads((folder / "tuned.toml").read_text())
    assert written["data"]["num_workers"] == kept[-1].options["data.num_workers"]
    assert written["task"] == {"width": 1}
    assert set(list_children(os.getpid())) <= before


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "surestep", "tune", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("moment", ["folder", "noise"])
def test_ctrl_c_ends_the_processes_and_leaves_what_is_known(recipe, tmp_path, moment):
    path = recipe(0.002)
    running = start(path, "--out", "t", "--minutes", "2", "--knobs", "workers")
    written = tmp_path / "t/tune.json"
    while not (written.exists() and (moment == "folder" or read(written)["step_s"])):
        assert running.poll() is None
        time.sleep(0.1)
    pid = read(tmp_path / "t/lock")["pid"]
    with pytest.raises(RunError, match=f"t is in use by process {pid} on .* with --out"):
        run_tune(call_recipe(load(path), {}, {}), TuneOptions(out=tmp_path / "t"))
    children = list_children(pid)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, "")
    assert "Stopped by Ctrl-C. This is what is known so far." in out
    assert read(written)["stopped"] == "Ctrl-C"
    assert (tmp_path / "t/tuned.toml").exists()
    wait_for_end_of(children)


def test_processes_end_with_a_tuner_that_is_killed(recipe, tmp_path):
    running = start(recipe(0.002), "--out", "t", "--task.fails", "hang", "--knobs", "workers")
    log = tmp_path / "t/log.txt"
    while not log.exists():
        assert running.poll() is None
        time.sleep(0.1)
    pid = read(tmp_path / "t/lock")["pid"]
    while not (children := list_children(pid)):
        time.sleep(0.1)
    time.sleep(5)  # it has imported torch, and hangs
    os.kill(pid, signal.SIGKILL)
    running.communicate(timeout=60)
    wait_for_end_of(children)


def wait_for_end_of(children):
    """Wait until no process is left: one that was killed is there until the kernel removes it."""
    end = time.monotonic() + 30
    while any(is_running(child) for child in children) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(is_running(child) for child in children)


def read(path):
    return json.loads(path.read_text())


def test_several_ranks_are_measured_together(recipe, tmp_path):
    measurer = ProcessMeasurer(recipe(0.0), tmp_path / "log.txt", 2, 120.0)
    try:
        with measurer.open_pair({}, {"data.num_workers": 1}, is_process_wide=False) as pair:
            assert pair.measure_round() > 0
            assert pair.measure_round() > 0
        assert measurer.find_difference({}, {"data.num_workers": 1}, 3) is None
        with (
            pytest.raises(MeasuringFailed, match=r"killed by SIGKILL|closed its connection"),
            measurer.open_pair({}, {"task.fails": "crash"}, is_process_wide=False),
        ):
            pass
    finally:
        measurer.close()
