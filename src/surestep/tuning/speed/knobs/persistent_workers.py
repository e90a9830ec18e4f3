"""Workers that stay between epochs.

It helps if epochs are short: to start workers again takes from milliseconds (fork) to seconds
(spawn).
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.data_settings import check_not_of_loader
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("data",)
KEEPS_NUMBERS = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Keep them."""
    if not plan.data_num_workers:
        raise NotTried("there are no workers")
    if plan.data_persistent_workers:
        raise NotTried("the workers persist already")
    check_not_of_loader(plan, "persistent_workers")
    return [{"data.persistent_workers": True}]
