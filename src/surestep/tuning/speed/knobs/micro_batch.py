"""Larger micro-batches, so that fewer of them make a batch.

It helps if a micro-batch does not fill the device: a larger one takes hardly more time. The batch
of a step stays the same.
"""

from collections.abc import Sequence

from surestep.engine.host_memory import read_host_memory
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.resolve.data import why_not_split
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("host", "forward", "backward", "data")
KEEPS_NUMBERS = False  # sums are taken over other micro-batches
IS_COUNT = True
_USABLE = 0.9  # of the memory: an estimate may be too low by a tenth


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Double the size while the estimated memory of a step fits, up to a rank's share."""
    info, size = plan.task_info, int(plan.micro_batch_size)
    if info.batched or info.no_data:
        raise NotTried("micro-batches have one size here: the Task makes them")
    if why := why_not_split(info):
        raise NotTried(f"another size would change the update: {why}")
    share = -(-int(plan.batch_size) // int(plan.parallel_ranks))
    sizes = []
    while size < share and _fits(plan, system, size := min(2 * size, share)):
        sizes.append(size)
    if not sizes:
        raise NotTried(
            f"all {share} samples that a rank has of a batch are one micro-batch"
            if plan.micro_batch_size >= share
            else f"micro-batches of {size} samples do not fit in memory by the estimate"
        )
    return [{"micro_batch_size": one} for one in sizes]


def _fits(plan: Plan, system: SystemInfo, size: int) -> bool:
    """Return whether a step fits in memory; a peak that is not known is tried."""
    peak = plan.task_info.trace_step(plan.replace(micro_batch_size=size)).peak
    if plan.device.type == "cuda":
        room: float | None = float(system.cuda_memory[plan.device.index or 0])
    else:
        room = read_host_memory().room
    return peak is None or room is None or peak <= _USABLE * room
