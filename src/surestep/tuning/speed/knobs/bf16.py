"""Forward passes in bf16.

It helps if the device has units for it: half the memory traffic, and products many times as fast.
A CPU without such units computes it more slowly.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("forward", "backward")
KEEPS_NUMBERS = False


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Use bf16."""
    if plan.precision in ("bf16", "fp16"):
        raise NotTried(f"the precision is {plan.precision}")
    if plan.device.type == "cuda" and not system.bf16_native:
        raise NotTried("this GPU has no units for bf16, and emulates it")
    if system.accelerate is not None:
        raise NotTried("accelerate's config sets the precision")
    return [{"precision": "bf16"}]
