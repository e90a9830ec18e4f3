"""Gradients that a script changes itself: some ways zero them, and others do not (SS101)."""

import runpy
from weakref import ref

import pytest
import torch

from surestep.doctor.rule import load_rules
from surestep.doctor.rules.ss101_missing_zero_grad import _Seen
from surestep.doctor.watch.watch import WatchSession
from tests.doctor.scripts import check_text

SCRIPT = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    for p in model.parameters():
        if p.grad is not None:
            LINE
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
RULES = [rule for rule in load_rules() if rule.code == "SS101"]
ZEROES = [
    "p.grad = None",
    "p.grad.zero_()",
    "p.grad.data.zero_()",
    "p.grad.data.fill_(0)",
    "p.grad.detach().zero_()",
    "p.grad.mul_(0)",
    "p.grad[...] = 0",
    "del p.grad",
    "setattr(p, 'grad', None)",
    "torch._foreach_zero_([p.grad])",
    "model.apply(lambda layer: layer.zero_grad())",
]
KEEPS = ["p.grad.norm(dim=0)", "print(p.grad == 0)", "p.grad.data.clamp_(-1, 1)"]


def check(file):
    return check_text(file.read_text(), "SS101")


def watch(file):
    watch = WatchSession(RULES)
    watch.run(lambda: runpy.run_path(str(file)))
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    return watch.report().findings


@pytest.mark.parametrize("find", [check, watch])
@pytest.mark.parametrize("line", ZEROES)
def test_gradients_zeroed_by_hand_are_not_reported(tmp_path, find, line):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.replace("LINE", line))
    assert list(find(file)) == []


@pytest.mark.parametrize(
    ("find", "line"), [*((check, line) for line in KEEPS), *((watch, line) for line in KEEPS[:2])]
)
def test_gradients_that_are_kept_are_reported(tmp_path, find, line):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.replace("LINE", line))
    assert [finding.rule for finding in find(file)] == ["SS101"]


class Unreadable(torch.Tensor):
    """A gradient whose values cannot be read by one process alone, as of a sharded parameter."""

    def any(self):
        raise AssertionError("the values were read")


def test_values_of_sharded_gradients_are_not_read():
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.zeros(3).as_subclass(Unreadable)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    assert not _Seen(ref(optimizer), [ref(parameter)]).is_zero()
