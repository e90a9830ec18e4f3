"""SS408: a curve of the losses that is not healthy."""

import shlex
from collections.abc import Iterator

from surestep.doctor.curves.causes import CAUSES
from surestep.doctor.curves.name import name_curve
from surestep.doctor.limits import UNHEALTHY
from surestep.doctor.problem import Problem
from surestep.trainer.review.case import Case


def find(case: Case) -> Iterator[Problem]:
    """Name the curve of the run; that of a manual step is a sum of losses, and has no name."""
    curve = case.curve
    for state in () if curve is None else name_curve(curve):
        if state.name not in UNHEALTHY:
            continue
        title = state.title[0].upper() + state.title[1:]
        run = shlex.quote(str(case.folder))
        yield Problem(
            f"{title}. {state.message}",
            {"state": state.name, "since_step": state.since_step, **state.evidence},
            f"The first cause to try: {CAUSES[state.name][0].text} The others, and what to type: "
            f"surestep diagnose {run}",
        )
