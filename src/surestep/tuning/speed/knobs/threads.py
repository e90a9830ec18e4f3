"""Another number of threads with which torch computes on a CPU.

It helps if torch uses more threads than there are cores, or if workers need the cores: threads that
wait for each other take time.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.cores import count_cores, count_threads
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("forward", "backward", "optimizer")
KEEPS_NUMBERS = False  # sums are split between the threads
IS_PROCESS_WIDE = True
IS_COUNT = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """One thread, twice as many and so on, up to a thread for each core."""
    now, cores = count_threads(plan, system), count_cores(system)
    counts = sorted({*(2**power for power in range(cores.bit_length())), cores} - {now})
    if not counts:
        raise NotTried("this process has one core, and one thread")
    return [{"num_threads": count} for count in counts]
