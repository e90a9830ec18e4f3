"""What a loss gets where the script chooses the module or the function that computes it."""

import pytest

from tests.doctor.scripts import check_text

SCRIPT = """\
import torch
from torch import nn

class Answer(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        return torch.softmax(self.last(x), dim=-1)

class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body = nn.Linear(4, 8)
        {make}

    def forward(self, x):
        return {head}(self.body(x)).squeeze(-1)

def train(kind, batches):
    model = nn.DataParallel(Net(kind))
    for x, y in batches:
        nn.CrossEntropyLoss()(model(x), y).backward()
"""
HEADS = {
    "by statements": (
        "if kind == 'a':\n            self.head = nn.Linear(8, 5)\n"
        "        else:\n            self.head = Answer()"
    ),
    "by an expression": "self.head = Answer() if kind == 'b' else nn.Linear(8, 5)",
    "by a table of classes": (
        "kinds = {'plain': nn.Identity, 'answer': Answer}\n        self.head = kinds[kind]()"
    ),
}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_one_of_the_heads_ends_with_a_softmax(make):
    text = SCRIPT.replace("{make}", make).replace("{head}", "self.head")
    (found,) = check_text(text, "SS501")
    assert (found.confidence, found.severity) == ("assumed", "warning")
    assert "line 10" in found.assumed


def test_all_heads_end_with_a_softmax():
    make = "self.head = Answer() if kind == 'b' else nn.Softmax(-1)"
    (found,) = check_text(SCRIPT.replace("{make}", make).replace("{head}", "self.head"), "SS501")
    assert (found.confidence, found.severity) == ("certain", "error")


@pytest.mark.parametrize("test", ["not self.training", "x.numel() > self.limit", "self.training"])
def test_softmax_under_a_condition_of_the_forward_is_not_assumed(test):
    forward = f"self.head(x) if {test} else torch.softmax(self.head(x), -1)"
    head = f"(lambda x: {forward})"
    for make in ("self.head = nn.Linear(8, 5)", "self.head = nn.Identity() if kind else nn.ReLU()"):
        text = SCRIPT.replace("{make}", make).replace("{head}", head)
        assert check_text(text, "SS501") == []
