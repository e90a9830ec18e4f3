"""The messages of rules name what the script calls it."""

from pathlib import Path

import pytest

from surestep.doctor.check import check_file
from surestep.doctor.rule import load_rules
from surestep.doctor.source.files import Project, parse_source

HEADER = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        logits = self.out(x)
        return logits, F.softmax(logits, 1)

model, x, y = Model(), torch.randn(8, 4), torch.randint(3, (8,))
"""


@pytest.mark.parametrize(
    ("code", "script", "start"),
    [
        (
            "SS501",
            "logits, probabilities = model(x)\nF.cross_entropy(probabilities, y)",
            "`probabilities` is the result of `F.softmax(logits, 1)`, and",
        ),
        (
            "SS501",
            "F.cross_entropy(target=y, input=F.softmax(model.out(x), 1))",
            "The input is the result of `F.softmax(model.out(x), 1)`, and",
        ),
        (
            "SS502",
            "F.binary_cross_entropy_with_logits(torch.sigmoid(model.out(x)), y)",
            "The input is the result of `torch.sigmoid(model.out(x))`, and",
        ),
        (
            "SS503",
            "F.nll_loss(F.softmax(model.out(x), 1), y)",
            "The input is the result of `F.softmax(model.out(x), 1)`: probabilities,",
        ),
        (
            "SS503",
            "F.nll_loss(model(x)[1], y)",
            "`model(x)[1]` is the result of `F.softmax(logits, 1)`: probabilities,",
        ),
    ],
)
def test_operation_is_named_once_and_the_input_as_it_is_written(code, script, start):
    file = parse_source(Path("script.py"), (HEADER + script).encode())
    rules = [rule for rule in load_rules() if rule.code == code]
    (finding,) = check_file(file, rules, Project())
    assert finding.message.startswith(start)


def test_one_block_without_gradients_is_one_finding():
    script = """
@torch.no_grad()
def generate(model, tokens, mode):
    for _ in range(8):
        if mode == "greedy":
            token = model(tokens)[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, token], 1)
        else:
            token = torch.multinomial(model(tokens)[:, -1].softmax(-1), 1)
            tokens = torch.cat([tokens, token], 1)
    return tokens
"""
    file = parse_source(Path("train.py"), (HEADER + script).encode())
    codes = [finding.rule for finding in check_file(file, load_rules(), Project())]
    assert codes.count("SS710") == 1


def test_evaluation_names_the_function_that_calls_it():
    script = """
model.eval()

def measure():
    for x in torch.randn(4, 8, 4):
        print(F.cross_entropy(model(x)[0], y).item())

def run():
    measure()

run()
"""
    (rule,) = [rule for rule in load_rules() if rule.code == "SS403"]
    file = parse_source(Path("script.py"), (HEADER + script).encode())
    (found,) = check_file(file, [rule], Project())
    assert found.message.endswith(
        "nothing turns gradients off, neither in `measure` nor in `run`, which calls it."
    )
