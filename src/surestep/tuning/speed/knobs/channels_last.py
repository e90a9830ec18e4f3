"""The channels of each pixel side by side in memory.

It helps models with convolutions, mostly in half precision on a GPU with tensor cores, and on many
CPUs: their kernels read the channels of a pixel together.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("forward", "backward")
KEEPS_NUMBERS = False  # other kernels, which round in another order


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Use that format."""
    if not plan.task_info.convolutions:
        raise NotTried("the model has no convolutions of images")
    if plan.channels_last:
        raise NotTried("the model is in the channels-last format already")
    return [{"channels_last": True}]
