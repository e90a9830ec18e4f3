"""Scripts with and without a mistake."""

import time
from pathlib import Path

from surestep.doctor.check import check_file
from surestep.doctor.rule import load_rules
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
