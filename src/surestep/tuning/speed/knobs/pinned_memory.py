"""Batches in page-locked host memory.

It helps on CUDA: a copy from such memory runs beside the computation, and takes less time.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.data_settings import check_not_of_loader
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("data", "host")
KEEPS_NUMBERS = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Use such memory."""
    if plan.device.type != "cuda":
        raise NotTried(f"nothing is copied to a GPU: the device is {plan.device.type}")
    if plan.data_pin_memory:
        raise NotTried("batches are in page-locked memory already")
    check_not_of_loader(plan, "pin_memory")
    return [{"data.pin_memory": True}]
