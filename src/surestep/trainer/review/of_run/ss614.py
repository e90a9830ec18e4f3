"""SS614: a run that waits for its data."""

import math
from collections.abc import Iterator

from surestep.doctor.limits import FEWEST_TIMED
from surestep.doctor.problem import Problem
from surestep.doctor.wording import format_seconds
from surestep.engine.data.sources import InMemory
from surestep.trainer.review.case import Case

_WAIT_SHARE = 0.2  # of the time, above which waiting for data is reported
_HANDOVER_S = 2e-3  # a batch from a worker costs about 1 ms, so faster loading needs none


def find(case: Case) -> Iterator[Problem]:
    """Find a run that waits for its data, with the number of workers that would keep up."""
    seen, plan = case.observed, case.loop.plan
    is_in_memory = isinstance(case.loop.loader.source, InMemory)
    if seen.timed_steps < FEWEST_TIMED or is_in_memory or not seen.seconds:
        return
    share = seen.data_wait_s / seen.seconds
    wait_s = seen.data_wait_s / seen.timed_steps
    step_s = (seen.seconds - seen.data_wait_s) / seen.timed_steps
    workers = plan.data_num_workers
    load_s = workers * (step_s + wait_s) if workers else wait_s  # they load a batch each
    if share <= _WAIT_SHARE or load_s < _HANDOVER_S:
        return
    needed = max(workers + 1, math.ceil(load_s / max(step_s, 1e-9) - 1e-6))
    cores = max(1, case.system.cpus // max(1, case.system.launched.local_size))
    fix = f"Set data.num_workers={needed}, which would load as fast as the step trains."
    if needed > cores:
        fix = (
            f"{needed} workers would keep up, and a process has {cores} cores here: make loading "
            "cheaper (decode and resize once, load data into memory)"
            + (f", and set data.num_workers={cores}." if workers != cores else ".")
        )
    yield Problem(
        f"{share:.0%} of the time was spent waiting for data: loading a batch takes "
        f"{format_seconds(load_s)} and its step {format_seconds(step_s)}, with "
        f"data.num_workers={workers}.",
        {
            "share": share,
            "load_s": load_s,
            "step_s": step_s,
            "num_workers": workers,
            "workers_needed": needed,
            "cores": cores,
        },
        fix,
    )
