"""A process that is killed after W&B took its values: W&B gets them once, online and offline."""

import json
import os
import signal
import subprocess

import pytest

from surestep.tracking.replay import replay_run
from surestep.tracking.wandb import WandbTracker
from tests.needs import needs
from tests.tracking.test_delivery import expected_points, train
from tests.tracking.test_wandb import losses_of, written_rows
from tests.tracking.wandb_server import use_server, wandb_server
from tests.warm import warm_python

DELIVER = """
import os, signal, sys
from pathlib import Path
from surestep.tracking.follower import Delivery
from surestep.tracking.wandb import WandbTracker

Delivery(Path(sys.argv[1]), WandbTracker()).deliver()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def server(monkeypatch, tmp_path):
    needs("wandb")
    with wandb_server() as server, use_server(monkeypatch, server.url, tmp_path):
        yield server


def deliver_and_die(run):
    """Deliver the events of a run in a process that is killed when W&B has taken them."""
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    words = [warm_python(), "-c", DELIVER, str(run)]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, env=own)  # with a service of its own
    assert done.returncode == -signal.SIGKILL


@pytest.mark.slow("starts processes that use W&B")
@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("then", ["replayed", "resumed"])
def test_values_of_a_process_that_was_killed_arrive_once(tmp_path, server, monkeypatch, mode, then):
    monkeypatch.setenv("WANDB_MODE", mode)
    folder = tmp_path / "run"
    run = train(folder, max_steps=6)
    deliver_and_die(folder)
    deliver_and_die(folder)
    if then == "replayed":
        replay_run(folder, WandbTracker())
    else:
        run = train(folder, **{"logging.trackers": "wandb"})
    state = json.loads((folder / "trackers" / "wandb.json").read_bytes())["state"]
    rows = server.rows(state["id"]) if mode == "online" else written_rows(folder)
    assert losses_of(rows) == expected_points(run)
    replay_run(folder, WandbTracker())
    rows = server.rows(state["id"]) if mode == "online" else written_rows(folder)
    assert losses_of(rows) == expected_points(run)
