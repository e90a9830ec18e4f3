"""What a run came to, in figures."""

from typing import Any

from surestep.engine.plan import Plan
from surestep.engine.state import State


def figures_of(plan: Plan, state: State, seconds: float, waited_s: float) -> dict[str, Any]:
    """Return how far a run came and how often it moved nothing, for its last event and status."""
    place, counts = state.place, state.counts
    return {
        "step": place.step,
        "epoch": place.epoch,
        "steps_taken": place.steps_taken,
        "items": place.items,
        "seconds": round(seconds, 3),
        "waited_s": round(waited_s, 3),
        **vars(counts),
        "clipped": None if plan.max_grad_norm is None else counts.clipped,
    }
