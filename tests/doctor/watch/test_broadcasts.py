"""A difference of all pairs of outputs and targets, and what becomes of it."""

import pytest
import torch
from torch import nn

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import Watch

X, Y = torch.randn(8, 4), torch.randn(8)
MISTAKES = {
    "mean": lambda table: table.mean(),
    "sum of a row": lambda table: table.sum(1).mean(),
    "largest of all": lambda table: table.max(),
    "tanh": lambda table: table.tanh().square().mean(),
}
RANKINGS = {
    "least of a row": lambda table: table.amin(1).mean(),
    "least of a row, with its place": lambda table: table.min(dim=1).values.mean(),
    "softmax": lambda table: (table.softmax(1) * torch.arange(8)).mean(),
    "logsumexp": lambda table: table.logsumexp(1).mean(),
    "sorted": lambda table: table.sort(1).values[:, :2].mean(),
    "class": lambda table: nn.functional.cross_entropy(-table, torch.arange(8)),
}


def watch(compute_losses):
    """Train three steps on the sum of losses; return the steps in which SS405 saw a mistake."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train():
        for _ in range(3):
            for loss in compute_losses(model(X)):
                loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()

    watch = Watch([rule for rule in load_rules() if rule.code == "SS405"])
    watch.run(train)
    report = watch.report()
    assert report.failures == {}
    return [finding.evidence["calls"] for finding in report.findings]


@pytest.mark.parametrize("reduce", MISTAKES.values(), ids=MISTAKES)
def test_loss_of_all_pairs_is_reported(reduce):
    assert watch(lambda output: [reduce((output - Y).abs())]) == [3]


@pytest.mark.parametrize("reduce", RANKINGS.values(), ids=RANKINGS)
def test_loss_that_ranks_each_row_is_not_reported(reduce):
    assert watch(lambda output: [reduce((output - Y).abs())]) == []


def test_mistake_in_a_second_loss_is_reported_once():
    def compute_losses(output):
        return [output.square().mean(), (output - Y).square().mean()]

    assert watch(compute_losses) == [3]


def test_difference_that_no_loss_contains_is_not_reported():
    def compute_losses(output):
        with torch.no_grad():
            (output - Y).argmin(1)
        (output - Y).argmin(1)
        return [output.square().mean()]

    assert watch(compute_losses) == []
