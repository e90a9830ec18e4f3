"""Losses of all pairs of outputs and targets: those that rank the pairs of a row are meant."""

import pytest

from tests.doctor.scripts import check_text

SCRIPT = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, 4), torch.randn(8)
for _ in range(3):
    e = model(x) - y
    LINES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MISTAKES = [
    "loss = torch.max(0.9 * e, -0.1 * e).mean()",  # of quantiles
    "loss = (0.9 * e).max(-0.1 * e).mean()",
    "loss = (e**2).flatten().topk(4).values.mean()",
    "loss = e.abs().max()",
    "loss = (e**2).mean(); best = min(loss.item(), 1.0)",
    "loss = (e**2).mean(); print(e.max(dim=0))",
    "loss = (torch.softmax(e.detach(), 1) * e).mean()",
]
RANKINGS = [
    "loss = (e**2).min(dim=1).values.mean()",
    "loss = torch.amin(e**2, -1).mean()",
    "loss = e.abs().amin(axis=1).mean()",
    "loss = torch.logsumexp(e, dim=(1,)).mean()",
    "loss = torch.nn.Softmin(dim=1)(e**2).mean()",
    "loss = torch.nn.functional.cross_entropy(-e.abs(), torch.arange(8))",
    "loss = (torch.softmax(e, 1) * e).mean()",
    "loss = (e**2).topk(2).values.mean()",
    "print(e.abs().argmin(1)); loss = model(x).mean()",
]


def check(lines):
    return check_text(SCRIPT.replace("LINES", lines), "SS405")


@pytest.mark.parametrize("lines", MISTAKES)
def test_difference_of_all_pairs_is_reported(lines):
    assert len(check(lines)) == 1


@pytest.mark.parametrize("lines", RANKINGS)
def test_difference_whose_rows_are_ranked_is_not_reported(lines):
    assert check(lines) == []
