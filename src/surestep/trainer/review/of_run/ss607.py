"""SS607: validation losses and scores that are too good."""

from collections.abc import Iterator

from surestep.doctor.curves.name import name_curve
from surestep.doctor.problem import Problem
from surestep.trainer.review.case import Case


def find(case: Case) -> Iterator[Problem]:
    """Find validation losses and scores that are too good."""
    curve = case.curve
    for state in () if curve is None else name_curve(curve):
        if state.name == "leaking":
            yield Problem(state.message, {"since_step": state.since_step, **state.evidence})
