"""The estimated peak of a step and the measured one, in a fresh process for each recipe."""

import pytest
from benchmarks.memory import run_alone

# How far the estimate may be from the measured peak. The recipes differ in what their steps have:
# attention, convolutions, several optimizers, embeddings of categories.
LIMITS = {"chars": 0.05, "segment": 0.15, "gan": 0.05, "tabular": 0.05}


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("name", LIMITS)
def test_estimate_is_close_to_the_measured_peak(name):
    found = run_alone(name, "measured", "surestep")
    assert found is not None
    measured, estimated = found
    assert estimated == pytest.approx(measured, rel=LIMITS[name])
