"""Activations stored instead of computed again.

It helps if a run recomputes its activations and there is memory for them: a step then has one
forward pass less.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("backward", "host")
KEEPS_NUMBERS = True  # what is computed again has the same bits


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Store them."""
    if plan.activation_checkpointing == "off":
        raise NotTried("activations are stored already")
    return [{"activation_checkpointing": "off"}]
