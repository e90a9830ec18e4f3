"""Batches of samples of similar length.

It helps if batches are padded to their longest sample: less is computed on padding.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("forward", "backward")
KEEPS_NUMBERS = False  # other batches


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Group them."""
    info = plan.task_info
    if info.order is not None:
        raise NotTried(f"the data has an order: {info.order.name}")
    if info.is_stream or info.no_data or info.batched or info.loader is not None:
        raise NotTried("the training data has no dataset of single samples")
    if info.in_memory or not info.collates:
        raise NotTried("samples are stacked, so they have one length")
    return [{"data.group_by_length": True}]
