"""A fit loads little of the doctor: of the rules, those whose mistake it finds."""

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
    print(*sorted(name for name in sys.modules if name.startswith("surestep.doctor")))
"""


@pytest.mark.slow("imports surestep again")
def test_fit_loads_few_modules_of_the_doctor(tmp_path):
    done = python_forked(tmp_path, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    correct, leaks = (line for line in lines if line[0] == "surestep.doctor")
    assert len(correct) <= 30, correct
    assert not [name for name in correct if name.startswith("surestep.doctor.rules.")]
    rules = [name for name in leaks if name.startswith("surestep.doctor.rules.")]
    assert rules == ["surestep.doctor.rules.ss615_target_is_input"]
