"""Another kernel of scaled_dot_product_attention.

torch chooses one by shape and type. Another one may be faster for a shape that its choice does not
know well.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.resolve.performance import list_sdpa_backends
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("forward", "backward")
KEEPS_NUMBERS = False  # each sums in its own order
IS_PROCESS_WIDE = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Try each backend that the device has."""
    if plan.task_info.trace_step(plan).attention == ():
        raise NotTried("the model calls no scaled_dot_product_attention")
    backends = list_sdpa_backends(plan.device.type)
    return [{"sdpa_backend": one} for one in backends if one not in ("auto", plan.sdpa_backend)]
