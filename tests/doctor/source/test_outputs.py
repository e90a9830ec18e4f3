"""The operation behind a tensor is found through models, and only where it is certain."""

from pathlib import Path

import pytest

from surestep.doctor.source.files import Project, parse_source
from surestep.doctor.source.interpreter import follow
from surestep.doctor.source.outputs import Outputs

HEADER = """
import torch
from torch import nn
import torch.nn.functional as F
x = torch.randn(8, 4)
"""


def names_of(script):
    """Return what may have computed the argument of `print` last."""
    program = follow(parse_source(Path("script.py"), (HEADER + script).encode()), Project())
    events = program.traces[0].events
    shown = next(e.call for e in events if e.call is not None and e.call.path == "print")
    return {origin.name for origin in Outputs(program).find(shown.args[0])}


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("print(F.softmax(x, 1))", {"softmax"}),
        ("print(x.sigmoid().squeeze(1).float())", {"sigmoid"}),
        ("print(nn.LogSoftmax(1)(x)[:, 0])", {"log_softmax"}),
        ("print(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Softmax(1)))(x))", {"softmax"}),
        ("all = [nn.ReLU()]\nall.append(nn.Sigmoid())\nprint(nn.Sequential(*all)(x))", {"sigmoid"}),
        ("y = x.sigmoid() if x.any() else nn.Linear(4, 1)(x)\nprint(y)", {"sigmoid", "linear"}),
        ("p = F.softmax(x, 1)\np.mul_(20)\nprint(p)", {""}),
        ("p = F.softmax(x, 1)\np[0] = 3\nprint(p)", {""}),
        ("net = nn.Sequential(nn.Softmax(1))\nnet[-1] = nn.ReLU()\nprint(net(x))", {""}),
        ("print(F.softmax(x, 1) * 20)", {""}),
        ("print(model(x))", {""}),
    ],
)
def test_last_operation_is_found(script, names):
    assert names_of(script) == names


def test_returned_parts_have_their_own_operations():
    model = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        logits = self.out(x)
        return logits, logits.softmax(1)

logits, probabilities = Model()(x)
"""
    assert names_of(f"{model}print(logits)") == {"linear"}
    assert names_of(f"{model}print(probabilities)") == {"softmax"}
