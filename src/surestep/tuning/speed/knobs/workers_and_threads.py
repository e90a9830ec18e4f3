"""Processes that load data, and fewer threads of torch, so that both have their own cores.

On a CPU, torch computes with a thread for each core. Its threads wait for each other: if a worker
has the core of one of them, all wait. So workers alone may help little.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.cores import count_cores, count_threads
from surestep.tuning.speed.knob import NotTried, Options
from surestep.tuning.speed.knobs import workers

SHARES = ("data",)
KEEPS_NUMBERS = False  # sums are split between the threads
IS_PROCESS_WIDE = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """As many workers as `workers` tries, and threads for the other cores."""
    now, cores = count_threads(plan, system), count_cores(system)
    tried = []
    for options in workers.candidates(plan, system):
        count = options["data.num_workers"]
        threads = max(1, cores - count)
        if count and threads < now and count <= cores:
            tried.append({**options, "num_threads": threads})
    if not tried:
        raise NotTried("no worker would get a core that a thread of torch has now")
    return tried
