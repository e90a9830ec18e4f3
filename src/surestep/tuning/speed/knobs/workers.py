"""Processes that load data beside the training.

They help if a step waits for its data: samples are then decoded and augmented on other cores, while
this process trains. On a CPU both share the cores, so a few more workers than cores may still help
if loading waits for a disk.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.cores import count_cores
from surestep.tuning.speed.data_settings import check_not_of_loader
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("data",)
KEEPS_NUMBERS = True  # a sample's seed depends on its position
IS_COUNT = True
_BEYOND = 2  # workers more than cores


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """One worker, twice as many and so on, a worker for each core, and some more."""
    info = plan.task_info
    if info.no_data:
        raise NotTried("the task has no training data to load")
    if info.in_memory:
        raise NotTried("the data is tensors in memory: slicing them needs no process")
    if system.is_daemon:
        raise NotTried("this process is a daemon of multiprocessing, which may start no workers")
    check_not_of_loader(plan, "num_workers")
    if info.is_stream:
        counts = [0, 1]  # more workers would each need a part of the stream
    else:
        cores = count_cores(system)
        powers = (2**power for power in range(cores.bit_length()))
        counts = sorted({0, *powers, cores, cores + _BEYOND})
    tried = [count for count in counts if count != plan.data_num_workers]
    return [{"data.num_workers": count} for count in tried]
