"""One kernel for the update of all parameters.

It helps if a model has many small parameters: an update in a loop over them launches several
kernels for each, and one with `foreach` several for all.
"""

from collections.abc import Sequence

from surestep.engine.optim.registry import optimizer_info
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("optimizer", "host")
KEEPS_NUMBERS = False  # each implementation rounds in its own order
_FASTEST_FIRST = ("fused", "foreach")


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Try the implementations that are faster than this one, as far as torch has them."""
    info = plan.task_info
    if info.own_optimizer or plan.optimizers:
        raise NotTried("the Task brings its optimizers, and decides how they are implemented")
    now = plan.optim_implementation
    if info.sparse:
        raise NotTried(f"the gradient of {info.sparse[0]} is sparse, which only a loop updates")
    has = [one for one in _FASTEST_FIRST if one in optimizer_info(plan.optim_name).signature]
    if not info.floating:  # fused takes no complex parameters
        has = [one for one in has if one != "fused"]
    if plan.optim_name == "sgd" and info.half and plan.device.type == "cpu":
        has = ["foreach"]  # torch's fused SGD computes wrong updates of them there
    faster = has[: has.index(now)] if now in has else has
    if not faster:
        raise NotTried(f"{now} is the fastest implementation that torch has of {plan.optim_name}")
    return [{"optim.implementation": one} for one in faster]
