"""Classes that a script chooses by a name, and what it loops over without knowing each."""

import pytest

from tests.doctor.scripts import check_text

LOOP = """\
import sys
import torch
from torch import nn, optim

model, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
{make}
for _ in range(9):
    loss = criterion(model(torch.randn(8, 4)), torch.randint(3, (8,)))
    loss.backward()
    optimizer.step()
"""
CHOICES = {
    "by getattr": "optimizer = getattr(optim, sys.argv[1])(model.parameters(), lr=0.1)",
    "by getattr of a default": (
        "optimizer = getattr(optim, sys.argv[1], optim.SGD)(model.parameters())"
    ),
    "by the names of a module": "optimizer = torch.optim.__dict__[sys.argv[1]](model.parameters())",
    "by a table": "optimizer = {'a': optim.Adam, 'b': optim.SGD}[sys.argv[1]](model.parameters())",
    "by get": (
        "KINDS = {'a': optim.Adam, 'b': optim.SGD}\n"
        "optimizer = KINDS.get(sys.argv[1])(model.parameters())"
    ),
    "by a condition": (
        "Kind = optim.Adam if len(sys.argv) > 1 else optim.SGD\n"
        "optimizer = Kind(model.parameters())"
    ),
    "by a function": (
        "def make(name, model):\n    return getattr(optim, name)(model.parameters(), lr=0.1)\n"
        "optimizer = make(sys.argv[1], model)"
    ),
    "by a class": (
        "class Maker:\n    KINDS = {'a': optim.Adam, 'b': optim.SGD}\n"
        "    def __init__(self, name):\n        self.kind = self.KINDS[name]\n"
        "optimizer = Maker(sys.argv[1]).kind(model.parameters())"
    ),
}


@pytest.mark.parametrize("make", CHOICES.values(), ids=CHOICES)
def test_chosen_class_of_an_optimizer_is_one_of_torch(make):
    script = LOOP.replace("{make}", make)
    (found,) = check_text(script, "SS101")
    assert found.line == script[: script.index("optimizer.step")].count("\n") + 1
    assert (
        check_text(script.replace("    loss.b", "    optimizer.zero_grad()\n    loss.b"), "SS101")
        == []
    )


def test_value_of_a_table_of_other_things_is_not_one_of_them():
    script = LOOP.replace("{make}", "optimizer = {'a': model, 'b': criterion}[sys.argv[1]]")
    assert check_text(script, "SS201") == []


ACCUMULATED = (
    LOOP.replace("{make}", CHOICES["by getattr"])
    .replace("for _ in range(9)", "for i in range(9)")
    .replace(
        "    optimizer.step()\n",
        "    if i % 3 == 2:\n        optimizer.step()\n        optimizer.zero_grad()\n",
    )
)


def test_sum_of_means_depends_on_the_optimizer_that_is_chosen():
    (found,) = check_text(ACCUMULATED, "SS107")
    assert (found.confidence, found.severity) == ("assumed", "warning")
    clip = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    clipped = ACCUMULATED.replace("        optimizer.step", f"{clip}        optimizer.step")
    (found,) = check_text(clipped, "SS107")
    assert found.confidence == "certain"


SCALED = """\
import torch
from torch.optim.lr_scheduler import StepLR

class Update:
    def __init__(self, model, enabled):
        self.weights = list(model.parameters())
        self.optimizers = [torch.optim.SGD(self.weights, 0.1)]
        self.schedules = [StepLR(optimizer, 9) for optimizer in self.optimizers]
        self.scaler = torch.amp.GradScaler("cuda", enabled=enabled)

    def apply(self, loss):
        before(self)
        self.scaler.scale(loss).backward()
        unknown
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        for schedule in self.schedules:
            schedule.step()
        self.scaler.update()
        train_more(self)
"""


def test_unknown_calls_before_and_after_do_not_hide_a_clip_of_scaled_gradients():
    (found,) = check_text(SCALED, "SS105")
    assert (found.line, found.confidence) == (15, "certain")


@pytest.mark.parametrize(
    "call", ["self.scaler.unscale_(self.optimizers[0])", "learn(self.scaler)", "train_more(self)"]
)
def test_unknown_call_between_backward_and_clip_may_unscale(call):
    assert check_text(SCALED.replace("unknown", call), "SS105") == []


RESUMED = """\
import argparse
import torch

def load(args, model):
    if args.resume:
        saved = torch.load(args.resume, map_location="cpu")
        {start} = saved["epoch"]
        model.load_state_dict(saved["model"])

{before}
model = torch.nn.Linear(4, 2)
load(args, model)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range({start}, 9):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("made", ["argparse.ArgumentParser().parse_args()", "argparse.Namespace()"])
def test_option_that_a_function_changes_is_that_of_the_checkpoint(made):
    text = RESUMED.replace("{before}", f"args = {made}")
    (found,) = check_text(text.replace("{start}", "args.first"), "SS801")
    assert found.line == 8
    assert (
        check_text(text.replace("{start}", "args.first", 1).replace("{start}", "0"), "SS801") == []
    )


def test_option_that_is_changed_may_still_have_any_value():
    before = "args = argparse.Namespace()\nargs.resume = False"
    text = RESUMED.replace("{before}", before).replace("{start}", "args.first")
    assert [found.rule for found in check_text(text, "SS801")] == ["SS801"]
