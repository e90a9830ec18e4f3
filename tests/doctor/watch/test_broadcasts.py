"""A difference of all pairs of outputs and targets, and what becomes of it."""

import pytest
import torch
from torch import nn

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession

X, Y = torch.randn(8, 4), torch.randn(8)
MISTAKES = {
    "mean": lambda table: table.mean(),
    "sum of a row": lambda table: table.sum(1).mean(),
    "largest of all": lambda table: table.max(),
    "hardest of all": lambda table: table.flatten().topk(4).values.mean(),
    "tanh": lambda table: table.tanh().square().mean(),
}
RANKINGS = {
    "least of a row": lambda table: table.amin(1).mean(),
    "least of a row, with its place": lambda table: table.min(dim=1).values.mean(),
    "softmax": lambda table: (table.softmax(1) * torch.arange(8)).mean(),
    "logsumexp": lambda table: table.logsumexp(1).mean(),
    "sorted": lambda table: table.sort(1).values[:, :2].mean(),
    "median": lambda table: table.median(1).values.mean(),
    "nearest": lambda table: table.gather(1, table.argmin(1, keepdim=True)).mean(),
    "weighted by softmax": lambda table: (table.softmax(1) * table).mean(),
    "class": lambda table: nn.functional.cross_entropy(-table, torch.arange(8)),
}


def report(train):
    """Return how often SS405 saw a mistake, for each line."""
    watch = WatchSession([rule for rule in load_rules() if rule.code == "SS405"])
    watch.run(train)
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    return [finding.evidence["calls"] for finding in watch.report().findings]


def watch(compute_losses):
    """Train three steps on the sum of losses; return how often SS405 saw a mistake."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train():
        for _ in range(3):
            for loss in compute_losses(model(X)):
                loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()

    return report(train)


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


def test_loss_after_the_step_of_another_optimizer_is_reported():
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (actor, critic)]

    def train():
        for _ in range(3):
            advantages = Y - critic(X)
            losses = [actor(X).square().mean(), advantages.square().mean()]
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    assert report(train) == [3]


def set_gradients(loss, parameters):
    gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def start_at_edge(loss, parameters):
    torch.autograd.backward([torch.autograd.graph.get_gradient_edge(loss)])


@pytest.mark.parametrize("differentiate", [set_gradients, start_at_edge])
def test_loss_is_reported_if_it_has_no_backward_call(differentiate):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train():
        for _ in range(3):
            optimizer.zero_grad()
            differentiate((model(X) - Y).square().mean(), list(model.parameters()))
            optimizer.step()

    assert report(train) == [3]
