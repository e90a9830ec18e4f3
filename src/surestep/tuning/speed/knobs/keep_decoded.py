"""Images kept decoded in memory, so that each file is decoded once.

It helps if a dataset opens JPEG or PNG files with Pillow, from the second epoch on.
"""

import math
from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("data",)
KEEPS_NUMBERS = True
BEGINS_IN_EPOCH_2 = True
_SHARE = 0.5  # of the memory, which the model, the workers and the system need as well


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Keep them in half of the memory of this machine."""
    info = plan.task_info
    if plan.data_keep_decoded is not None:
        raise NotTried(f"images are kept already, in {plan.data_keep_decoded}")
    if info.in_memory or info.no_data or info.is_stream:
        raise NotTried("the training data has no dataset that opens files")
    if "PIL" not in system.extras:
        raise NotTried("Pillow is not installed, so it decodes nothing")
    if math.isinf(system.memory):
        raise NotTried("how much memory this machine has is not known")
    return [{"data.keep_decoded": f"{int(_SHARE * system.memory / 1e6)}MB"}]
