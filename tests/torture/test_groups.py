"""A few killed data workers, ranks, launchers and groups; `make torture` kills many."""

import random

import torch

from tests.torture.groups import Group
from tests.torture.warm_process import ask
from tests.warm import warm_python


def test_killed_data_workers_are_named_and_cost_nothing(tmp_path):
    count = ask("workers", folder=str(tmp_path), wanted=3)
    assert count["wrong"] == []
    assert count["kills"] >= 3


def test_killed_worker_and_killed_launcher_cost_a_group_nothing(tmp_path):
    whole, killed = (Group(tmp_path / name) for name in ("whole", "killed"))
    whole.start(warm_python())  # what is not killed needs no new Python
    killed.hold(4)
    killed.start()
    assert killed.wait_for_steps(4)
    assert killed.kill("worker", random.Random(0))  # torchrun restarts the ranks
    killed.hold(9)
    assert killed.wait_for_steps(3)
    assert killed.kill("launcher", random.Random(0))
    killed.hold(1000)
    assert killed.left() == []
    killed.start(warm_python())
    assert (whole.launcher.wait(300), killed.launcher.wait(300)) == (0, 0)
    assert torch.equal(whole.weights(), killed.weights())
