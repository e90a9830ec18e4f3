"""cuDNN's algorithms measured for each new shape of input.

It helps convolutions on a GPU if the shapes stay the same: cuDNN then takes the algorithm that was
the fastest, and not the one that it guesses.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("forward", "backward")
KEEPS_NUMBERS = False  # another algorithm, which may differ in each run
IS_PROCESS_WIDE = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Measure them."""
    if plan.device.type != "cuda":
        raise NotTried(f"cuDNN is for NVIDIA GPUs, and the device is {plan.device.type}")
    if not plan.task_info.convolutions:
        raise NotTried("the model has no convolutions of images")
    if plan.cudnn_benchmark:
        raise NotTried("it is on already")
    if plan.deterministic:
        raise NotTried("deterministic=True excludes it: the algorithm it finds may differ")
    return [{"cudnn_benchmark": True}]
