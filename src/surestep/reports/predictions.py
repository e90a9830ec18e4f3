"""What the page of a run shows of its predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from surestep.base.errors import RunError
from surestep.record.predictions import read_predictions
from surestep.record.run import Run

_NOT_SHOWN = "not shown: "  # in the Plan, before the reason


def describe_predictions(run: Run, plan: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the predictions that a run collected; None if it was not to collect any.

    Args:
        run: may be running.
        plan: its options with their reasons.

    Returns:
        "evaluations" as EvaluationPredictions, the newest first, and "why" there are none, or None.
    """
    try:
        found = read_predictions(run.path)
    except RunError as error:
        return {"why": str(error), "evaluations": []}
    if found is not None:
        return {"why": None, "evaluations": found["evaluations"]}
    reasons = {str(entry["option"]): str(entry.get("reason", "")) for entry in plan}
    why = reasons.get("report.samples", "").partition(_NOT_SHOWN)[2]
    return {"why": why, "evaluations": []} if why else None
