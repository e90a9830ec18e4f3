"""Name the states of a curve."""

from __future__ import annotations

from surestep.doctor.curves.curve import Curve
from surestep.doctor.curves.state import CurveState
from surestep.doctor.curves.training import is_short, name_training
from surestep.doctor.curves.validation import name_validation


def name_curve(curve: Curve) -> tuple[CurveState, ...]:
    """Return the states of a curve: that of the training loss, and what the validation shows.

    A state in which something seems to be wrong comes first. Multiplying all losses by a number
    changes no state except "stuck", and so does shifting the steps.

    Args:
        curve: the losses of a run.

    Returns:
        One or two states.
    """
    training = name_training(curve)
    if training.name in ("nonfinite", "diverging", "stuck", "flat") or is_short(curve):
        return (training,)
    validation = name_validation(curve)
    if validation is None:
        return (training,)
    return (validation, training)
