"""A fit loads few modules: those that it uses, and the rules whose mistake it finds."""

import pytest

from tests.forked import python_forked

SCRIPT = """
import sys

import torch

import surestep

x = torch.randn(150, 4, generator=torch.Generator().manual_seed(0))
for name, target in (("correct", x.sum(1, keepdim=True)), ("leaks", x[:, :1])):
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, target))
    surestep.Trainer(task, surestep.Config(epochs=1), run=name).fit()
    print(*sorted(name for name in sys.modules if name.startswith("surestep")))
"""
# For mirrors, trackers, memory tables, non-finite steps, and orders other than a shuffle.
NOT_USED = (
    *("surestep.mirror.open", "surestep.mirror.store", "surestep.mirror.uploader"),
    *("surestep.tracking.follower", "surestep.tracking.registry", "surestep.tracking.replay"),
    *("surestep.engine.profile.step_trace", "surestep.engine.profile.rank_memory"),
    *("surestep.engine.diagnose.bisect", "surestep.engine.diagnose.nonfinite_tracker"),
    *("surestep.engine.data.samplers.mixtures", "surestep.engine.data.samplers.weights"),
    *("surestep.tuning", "surestep.cli", "surestep.recipes", "surestep.testing"),
)


@pytest.mark.slow("imports surestep again")
def test_fit_loads_few_modules(tmp_path):
    done = python_forked(tmp_path, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    correct, leaks = (line.split() for line in done.stdout.splitlines()[-2:])
    # A module takes 0.3 to 3 ms of the start of each process that trains.
    assert len(correct) <= 349, sorted(correct)
    assert not [name for name in correct if name.startswith(NOT_USED)]
    doctor = [name for name in correct if name.startswith("surestep.doctor")]
    assert len(doctor) <= 30, doctor
    assert not [name for name in doctor if name.startswith("surestep.doctor.rules.")]
    rules = [name for name in leaks if name.startswith("surestep.doctor.rules.")]
    assert rules == ["surestep.doctor.rules.ss615_target_is_input"]
