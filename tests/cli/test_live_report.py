"""`surestep report --live`: what can be typed, and how it ends."""

import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest

from surestep.cli.live_report import log_once, make_follower
from surestep.tuning.settings import STUDY_FILE
from tests.cli.conftest import RECIPE
from tests.reports.folders import evaluation, log_point, write_run
from tests.reports.live.runs import start_run

USUAL = [log_point(1, [3.0, 2.0]), evaluation(2, 1.5)]


@pytest.fixture
def runs(folder):
    """Two runs in the folder runs."""
    return [write_run(folder / "runs" / name, USUAL) for name in ("a", "b")]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["s3://bucket/a"], 2, "--live reads run folders on this machine, and s3://bucket/a is an"),
        (["runs/a", "--json"], 2, "--live serves a page and writes nothing. Leave --json out."),
        (["runs/a", "--out", "a.html"], 2, "Leave --out out."),
        (["gone"], 1, "There is no folder gone."),
        (["runs/a", "--port", "99999"], 2, "port=99999 cannot be used"),
        (["runs/a", "--port", "x"], 2, "--port"),
    ],
)
def test_wrong_words_are_explained(runs, surestep, words, code, message):
    answer = surestep("report", *words, "--live")
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


def test_port_without_live_is_explained(runs, surestep):
    answer = surestep("report", "runs/a", "--port", 8000)
    assert answer.code == 2
    assert "--port is the port of a live page. Add --live." in answer.err


def test_damaged_run_is_explained(runs, surestep):
    (runs[0] / "events.jsonl").write_text("{damaged\n{}\n")
    answer = surestep("report", "runs/a", "--live")
    assert (answer.code, answer.out) == (1, "")
    assert "is not an event" in answer.err


def read_page(*folders):
    follower = make_follower([str(one) for one in folders])
    assert follower.update() == ""
    return follower.news.read_page()


def test_one_run_has_its_page_and_a_folder_a_comparison(runs, folder):
    assert (page := read_page("runs/a"))["kind"] == "run"
    assert page["live"]["state"] == "finished"
    page = read_page("runs")
    assert [run["name"] for run in page["runs"]] == ["runs/a", "runs/b"]
    assert page["live"]["state"] == "none of 2 runs running"
    page = read_page("runs/b", "runs")
    assert [run["name"] for run in page["runs"]] == ["runs/b", "runs/a"]
    (folder / "empty").mkdir()
    assert read_page("empty")["runs"] == []


def test_study_is_compared_with_its_objective(folder):
    write_run(folder / "s" / "trials" / "0", USUAL)
    study = {
        **{"format": 1, "recipe": {}, "fixed": {}, "space": {}, "objectives": [["val/f1", "max"]]},
        **{"sampler": "tpe", "pruner": "none", "name": "s", "storage": None, "seed": 0},
        **{"trials": 2, "threads": 1, "nproc": 1},
    }
    (folder / "s" / STUDY_FILE).write_text(json.dumps(study))
    page = read_page("s")
    assert page["about"] == "objective: val/f1 (max)"
    assert [run["metrics"] for run in page["runs"]] == [{"val/loss": 1.5}]


def test_message_is_logged_once_while_runs_are_read_again_and_again(caplog):
    logger = logging.getLogger("surestep")
    with log_once():
        for text in ("a", "b", "a"):
            logger.warning("%s is damaged", text)
    logger.warning("a is damaged")
    assert caplog.messages == ["a is damaged", "b is damaged", "a is damaged"]


def test_folder_that_is_deleted_is_reported_and_its_runs_stay(runs):
    follower = make_follower(["runs"])
    follower.update()
    shutil.rmtree("runs")
    follower._due = 0
    assert "There is no folder runs." in follower.update()
    page = follower.news.read_page()
    assert [run["name"] for run in page["runs"]] == ["runs/a", "runs/b"]
    assert set(page["problems"]) == {"runs/a", "runs/b"}


@contextmanager
def serve(*words):
    """Run the command; yield its process and the address that it prints."""
    command = [sys.executable, "-m", "surestep", "report", *words, "--live"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def ask(address, version=0):
    with urllib.request.urlopen(f"{address}news?after={version}", timeout=10) as answer:
        return json.load(answer)


@pytest.mark.slow("starts a server in a process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_server_whatever_clients_are_connected(folder, number):
    start_run(folder / "a", *USUAL)
    with serve("a") as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
        assert ask(address)["state"] == "killed"
        port = int(address.split(":")[2].split("/")[0])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        silent[0].sendall(b"GET / HT")
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(5) == (0 if number == signal.SIGINT else -signal.SIGTERM)
        assert time.monotonic() - began < 4  # seconds, on a machine that other tests load
        assert (process.stdout.read().strip(), process.stderr.read()) == ("", "")
        for connection in silent:
            connection.close()


WAITING = """
from pathlib import Path
import time

class Waiting(surestep.Callback):
    def on_step(self, state, result):
        while result.step == 4 and not Path("go").exists():
            time.sleep(0.01)

callbacks = [Waiting()]
config = surestep.Config(epochs=2, batch_size=8, logging={"every": "1 step"})
"""


@pytest.mark.slow("trains a run while it is served")
def test_run_of_a_real_command_is_served_while_it_trains(folder, recipe):
    train = [sys.executable, "-m", "surestep", "train", recipe(RECIPE + WAITING), "--run", "r"]
    with subprocess.Popen(train, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as training:
        wait_until(lambda: (folder / "r" / "status.json").exists() or training.poll() is not None)
        with serve("r") as (_, address):
            page = Page(address)
            wait_until(lambda: page.ask()["state"] == "running" and page.losses >= 3)
            assert page.losses < 6
            (folder / "go").touch()
            wait_until(lambda: page.ask()["state"] == "finished" and page.losses == 6)
        assert training.wait() == 0, training.stderr.read()


def wait_until(holds):
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("It did not happen in a minute.")


class Page:
    """A page that asks a server for what is new.

    Attributes:
        losses: how many training losses it has.
    """

    def __init__(self, address):
        self.address, self.version, self.losses = address, 0, 0

    def ask(self):
        answer = ask(self.address, self.version)
        self.version, charts = answer["version"], answer["parts"].get("charts")
        self.losses = self.losses if charts is None else 0
        for chart in [*(charts or []), *(one for p in answer["increments"] for one in p["charts"])]:
            for curve in chart["curves"]:
                self.losses += curve["count"] * (curve["name"] == "train/loss")
        return answer
