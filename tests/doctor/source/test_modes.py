"""A model that an evaluation leaves in eval mode, and what switches it back."""

from pathlib import Path

import pytest

from surestep.doctor.check import check_file
from surestep.doctor.rule import load_rules
from surestep.doctor.source.files import Project, parse_source

SCRIPT = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x, targets):
        logits = self.net(x)
        return logits, cross_entropy(logits, targets)

@torch.no_grad()
def estimate_loss(model):
    model.eval()
    losses = torch.zeros(4)
    for i in range(4):
        _, loss = model(torch.randn(8, 4), torch.randint(2, (8,)))
        losses[i] = loss.item()
    return losses.mean()

def step(model, optimizer):
    _, loss = model(torch.randn(8, 4), torch.randint(2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BEFORE_THE_STEP = """\
for i in range(12):
    if i % 4 == 0:
        print(estimate_loss(model))
    step(model, optimizer)
"""
IN_EACH_EPOCH = """\
for epoch in range(3):
    model.train()
    for i in range(12):
        if i % 4 == 0:
            print(estimate_loss(model))
        step(model, optimizer)
"""
SWITCHED_BACK = """\
for i in range(12):
    if i % 4 == 0:
        print(estimate_loss(model))
        model.train()
    step(model, optimizer)
"""
AT_THE_END = """\
for i in range(12):
    if i % 4 == 0 and i > 9:
        print(estimate_loss(model))
        break
    step(model, optimizer)
"""
IN_THE_LAST_PASS = """\
for epoch in range(3):
    model.train()
    for i in range(12):
        step(model, optimizer)
        if i == 11:
            print(estimate_loss(model))
"""
IN_OTHER_PASSES = """\
for i in range(12):
    if i % 4 == 0:
        print(estimate_loss(model))
    else:
        model.train()
        step(model, optimizer)
"""


def find(loop):
    file = parse_source(Path("train.py"), (SCRIPT + loop).encode())
    return {finding.rule for finding in check_file(file, load_rules(), Project())}


@pytest.mark.parametrize("loop", [BEFORE_THE_STEP, IN_EACH_EPOCH])
def test_evaluation_under_a_condition_leaves_eval_mode_to_later_passes(loop):
    assert "SS401" in find(loop)


@pytest.mark.parametrize("loop", [SWITCHED_BACK, AT_THE_END, IN_THE_LAST_PASS, IN_OTHER_PASSES])
def test_eval_mode_that_no_later_pass_has_is_not_reported(loop):
    assert "SS401" not in find(loop)
