"""The usual causes of a curve are those that its run can have."""

import pytest

from surestep.doctor.curves.causes import list_causes
from surestep.doctor.curves.state import CurveState


@pytest.mark.parametrize(
    ("decided", "is_named"),
    [({"precision": "bf16"}, True), ({}, True), ({"precision": "fp32"}, False)],
)
def test_half_precision_is_a_cause_only_of_runs_that_have_it(decided, is_named):
    causes = list_causes(CurveState("nonfinite", "a"), {"decided": decided}, recipe="digits")
    assert len(causes) == 2 + is_named
    assert ("surestep train digits --precision fp32" in [one.command for one in causes]) == is_named
