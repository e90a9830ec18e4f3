"""`surestep check --why`: what is known at a line, and where the analysis gave up."""

from pathlib import Path

import pytest

from surestep.base.errors import ConfigError
from surestep.doctor.source import interpreter
from surestep.doctor.why import explain_line

SCRIPT = """\
import torch
from torch.nn.functional import cross_entropy

def evaluate(net, batches, guard):
    net.eval()
    guard.prepare_for(net)
    for x, y in batches:
        scores = net(x)
        print(cross_entropy(scores, y).item())
        guard.train_on(scores)

net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
STEP = """\
for x in torch.randn(9, 8, 4):
    net(x).sum().backward()
    run_something_that_trains(optimizer)
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT + STEP)


def test_line_is_described_as_the_analysis_sees_it():
    head, *lines = explain_line("train.py:8", "SS403")
    assert head == "train.py:8 SS403 reports nothing here."
    forward = next(line for line in lines if line.startswith("  call `net(x)`"))
    assert "followed from `evaluate`, which nothing calls" in forward
    assert "a forward pass of a model" in forward
    assert "in the loops of lines 7" in forward


def test_call_at_which_the_analysis_gave_up_is_named():
    lines = explain_line("train.py:8", "evaluation-builds-graph")
    at = lines.index("It gave up here:")
    assert lines[at + 1 :] == [
        "  train.py:6 `guard.prepare_for(net)` may change the mode of `net`.",
    ]


def test_call_that_may_be_a_part_of_a_step_is_named():
    text = "\n".join(explain_line("train.py:17", "SS106"))
    assert "train.py:16 `run_something_that_trains(optimizer)`" in text
    assert "it is not followed" in text


def test_finding_is_shown():
    text = SCRIPT + STEP.replace("    run_something_that_trains(optimizer)\n", "")
    Path("train.py").write_text(text)
    head = explain_line("train.py:16", "SS101")[0]
    assert head.startswith("train.py:16 SS101 `optimizer.step()` uses")


def test_script_that_is_too_long_says_where_following_it_ended(monkeypatch):
    monkeypatch.setattr(interpreter, "MAX_STATEMENTS", 7)
    lines = explain_line("train.py:17", "SS101")
    assert lines[1] == (
        "  Nothing here was followed: it calls and assigns nothing, or it is not reached."
    )
    assert lines[2].startswith("  The script is too long: following it ended at train.py:")


@pytest.mark.parametrize(
    ("place", "rule", "message"),
    [
        ("train.py", "SS101", "Write --why train.py:38 SS401"),
        ("train.py:0", "SS101", "is not a line of a file"),
        ("train.py:99", "SS101", "train.py has 18 lines"),
        ("other.py:9", "SS101", "cannot be read"),
        ("train.py:9", "SS999", "There is no rule 'SS999'"),
        ("train.py:9", "SS4", "give one rule"),
        ("train.py:9", "SS408", "give one rule that `surestep check` has"),
    ],
)
def test_place_or_rule_that_is_none_is_rejected(place, rule, message):
    with pytest.raises(ConfigError) as caught:
        explain_line(place, rule)
    assert message in str(caught.value)
