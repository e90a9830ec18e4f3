"""Scripts with and without a mistake."""

import time
from pathlib import Path

from surestep.doctor.check import check_file
from surestep.doctor.rule import load_rules, read_example
from surestep.doctor.source.files import Project, parse_source

GOOD = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BAD = GOOD.replace("    optimizer.zero_grad()\n", "")  # SS101 in line 8, columns 5 to 20


def check_text(text, code):
    """Return what a rule finds in a script."""
    rules = [rule for rule in load_rules() if rule.code == code]
    return check_file(parse_source(Path("script.py"), text.encode()), rules, Project())


def notebook(*cells):
    """Return a notebook with a text cell and these code cells."""
    import json

    code = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    text = {"cell_type": "markdown", "source": ["# Training"]}
    return json.dumps({"cells": [text, *code], "nbformat": 4})


def needs_ranks(example):
    """Return whether an example of a rule trains on several ranks."""
    return "init_process_group(" in read_example(example)


def uses_trainer(example):
    """Return whether an example of a rule is a run of Trainer."""
    text = read_example(example)
    return "surestep.Trainer(" in text or "surestep.prepare(" in text


def list_watched(rule, kind, *, on_ranks=False):
    """List the examples that show a mistake, or none, while they run; on several ranks or on one.

    A rule names the others in WATCH_SKIPS.
    """
    skipped = getattr(rule.module, "WATCH_SKIPS", ())
    return [
        name
        for name, made in rule.examples(kind).items()
        if not uses_trainer(made) and needs_ranks(made) is on_ranks and name not in skipped
    ]


def let_only_sleep_take_time(monkeypatch):
    """Let time pass while an example sleeps, and 0.1 ms when the clock is read.

    On a busy machine, a step takes as long as the data that an example loads slowly.
    """
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    def read():
        sleep(1e-4)
        return now

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", read)
