"""Products of fp32 matrices in TF32.

It helps on NVIDIA GPUs of the Ampere generation or newer: their tensor cores multiply with 10 bits
of mantissa instead of 23, several times as fast.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("forward", "backward")
KEEPS_NUMBERS = False
IS_PROCESS_WIDE = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Use TF32."""
    if plan.precision != "fp32":
        raise NotTried(f"the precision is {plan.precision}")
    if plan.device.type != "cuda" or not system.tf32:
        raise NotTried("it needs an NVIDIA GPU of the Ampere generation or newer")
    if system.accelerate is not None and system.accelerate.mixed_precision != "no":
        raise NotTried("accelerate's config sets the precision")
    return [{"precision": "tf32", "matmul_precision": "high"}]
