"""Tensors that are not dense pass through models without an error of a rule."""

import pytest
import torch
from torch import nn

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.hooks import Monitor
from surestep.doctor.watch.watch import WatchSession
from surestep.doctor.watcher import Watcher

# torch says of CSR and of nested tensors that they are not finished.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class GraphLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3))

    def forward(self, neighbors, features):
        return torch.sparse.mm(neighbors, features @ self.weight)


def coordinates():
    return GraphLayer(), (torch.eye(16).to_sparse(), torch.randn(16, 8))


def csr():
    return GraphLayer(), (torch.eye(16).to_sparse_csr(), torch.randn(16, 8))


def sparse_input():
    return nn.Linear(8, 3), (torch.randn(16, 8).to_sparse(),)


def jagged():
    rows = torch.nested.nested_tensor([torch.randn(6, 8), torch.randn(10, 8)], layout=torch.jagged)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), (rows,)


def complex_numbers():
    return nn.Linear(8, 3, dtype=torch.complex64), (torch.randn(16, 8, dtype=torch.complex64),)


def sparse_gradient():
    return nn.EmbeddingBag(20, 3, sparse=True), (torch.randint(20, (16, 4)),)


@pytest.mark.parametrize(
    "make", [coordinates, csr, sparse_input, jagged, complex_numbers, sparse_gradient]
)
def test_rules_pass_over_tensors_of_other_layouts(make):
    model, inputs = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.randint(3, (16,))

    def train():
        for _ in range(30):
            optimizer.zero_grad()
            output = model(*inputs)
            logits = output.values() if output.is_nested else output
            nn.functional.cross_entropy(logits.abs(), labels).backward()
            optimizer.step()

    watch = WatchSession(load_rules())
    watch.run(train)
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    assert report.findings == []


def test_finite_inputs_whose_sum_is_not_are_not_called_infinite():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x):
            logits = self.layer(torch.where(x > 1e30, 0.0, x))
            return logits.masked_fill(logits < -2, torch.finfo(logits.dtype).min)

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train():
        for _ in range(20):
            x = torch.randn(64, 8)
            x[:, 0] = torch.finfo(x.dtype).max
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), torch.randint(3, (64,))).backward()
            optimizer.step()

    watch = WatchSession([rule for rule in load_rules() if rule.code == "SS609"])
    watch.run(train)
    assert watch.report().findings == []


def test_long_error_of_a_rule_is_shown_by_its_first_line():
    class Failing(Watcher):
        def on_step(self, run, optimizer):
            raise RuntimeError("no kernel " * 50 + "\nSparseCPU\nMeta")

    monitor = Monitor({"SS000": Failing()})
    with monitor.installed():
        torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.1).step()
    (text,) = monitor.listeners.failures.values()
    assert text.startswith("RuntimeError: no kernel no kernel")
    assert len(text) < 250
    assert "\n" not in text
