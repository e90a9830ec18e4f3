"""Histograms of weights and gradients: their numbers, and the steps at which they are recorded."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from surestep.tracking.histograms import BINS, RecordHistograms, compute_histogram
from surestep.tracking.tracker import Histogram
from tests import tiny


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(3000, generator=torch.Generator().manual_seed(1)),
        torch.arange(2.0 * BINS + 1),
        torch.full((7,), -2.5),
    ],
    ids=["normal", "even", "constant"],
)
def test_histogram_counts_the_finite_values_as_numpy_does(values):
    bad = torch.tensor([[torch.nan, torch.inf, -torch.inf]])
    found = compute_histogram([values[:5], bad, values[5:]])
    low, high = float(values.min()), float(values.max())
    counts, edges = np.histogram(values.numpy(), BINS, (low, high if high > low else low + BINS))
    assert found == {
        **{"min": low, "max": high, "counts": counts.tolist()},
        "sum": pytest.approx(float(values.double().sum())),
        "sum_squares": pytest.approx(float(values.double().square().sum())),
    }
    if high > low:
        shown = Histogram(low, high, found["counts"], found["sum"], found["sum_squares"])
        assert shown.edges == pytest.approx(edges.tolist(), abs=1e-6)


def test_histogram_of_no_finite_value_is_none():
    assert compute_histogram([torch.tensor([torch.nan, torch.inf]), torch.zeros(0)]) is None


def test_histogram_of_complex_values_has_both_parts():
    found = compute_histogram([torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 0.0]))])
    assert (found["min"], found["max"], sum(found["counts"]), found["sum"]) == (-3.0, 2.0, 4, 0.0)


def test_histograms_are_recorded_at_the_first_log_point_after_each_interval():
    recorded, closed = [], []
    callback = RecordHistograms(5, lambda **fields: recorded.append(fields), lambda: bool(closed))
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1))
    state = tiny.state_of(model, steps=0, make=lambda _: torch.optim.SGD([model[0].weight], lr=1))
    model[0].weight.grad = torch.tensor([[1.0, 3.0]])
    for first, steps in ((1, 4), (5, 1), (6, 4), (10, 7), (17, 3), (20, 1)):
        callback.on_log(state, SimpleNamespace(first_step=first, loss=[0.0] * steps))
    assert [fields["step"] for fields in recorded] == [5, 16, 20]
    fields = recorded[0]
    assert (list(fields["weights"]), list(fields["gradients"])) == (["0", "2"], ["0"])
    assert sum(fields["weights"]["0"]["counts"]) == 3
    assert (fields["gradients"]["0"]["min"], fields["gradients"]["0"]["max"]) == (1.0, 3.0)
    closed.append(True)  # the ranks may no longer gather together
    callback.on_log(state, SimpleNamespace(first_step=21, loss=[0.0] * 9))
    assert len(recorded) == 3
