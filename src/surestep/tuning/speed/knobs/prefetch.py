"""More micro-batches that each worker loads ahead.

It helps if some samples take much longer to load than others, since the steps then wait less often.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.data_settings import check_not_of_loader
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("data",)
KEEPS_NUMBERS = True
IS_COUNT = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Double and quadruple what is loaded ahead."""
    if not plan.data_num_workers:
        raise NotTried("there are no workers")
    check_not_of_loader(plan, "prefetch_factor")
    ahead = plan.data_prefetch_factor or 2  # torch's default
    return [{"data.prefetch_factor": ahead * 2}, {"data.prefetch_factor": ahead * 4}]
