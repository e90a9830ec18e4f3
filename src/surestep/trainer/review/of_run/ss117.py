"""SS117: a run that clipped most of its steps, and by a large factor."""

from collections.abc import Iterator
from statistics import median

from surestep.doctor.limits import CLIPPED_SHARE, FAR_ABOVE_LIMIT, FEWEST_CLIPPED
from surestep.doctor.problem import Problem
from surestep.trainer.review.case import Case


def find(case: Case) -> Iterator[Problem]:
    """Find a run that clipped most of the steps that were taken, and by a large factor."""
    state, limit, ratios = case.loop.state, case.loop.plan.max_grad_norm, case.observed.ratios
    taken, clipped = state.progress.steps_taken, state.counts.clipped
    if limit is None or taken < FEWEST_CLIPPED or clipped < CLIPPED_SHARE * taken or not ratios:
        return
    ratio = median(ratios)
    if ratio <= FAR_ABOVE_LIMIT:
        return
    enough = float(f"{2 * ratio * limit:.1g}")
    yield Problem(
        f"{clipped} of {taken} steps ({clipped / taken:.0%}) were clipped: "
        f"their gradient norm was {ratio:.3g} times max_grad_norm={limit:g} (median).",
        {"clipped": clipped, "steps": taken, "ratio": ratio, "limit": limit},
        "The gradient norm then has little effect: optim.lr alone sets the size of an update. "
        f"To clip fewer steps, set max_grad_norm={enough:g}; to clip none and only measure the "
        "norm, 'off'.",
        "info",
    )
