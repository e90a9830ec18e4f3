"""The cores that a process of a run has, and the threads that torch uses on them."""

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried


def count_cores(system: SystemInfo) -> int:
    """Return how many cores each process of this machine has: at least 1."""
    return max(1, system.cpus // system.launched.local_size)


def count_threads(plan: Plan, system: SystemInfo) -> int:
    """Return with how many threads torch computes on a CPU; raise NotTried on another device."""
    if plan.device.type != "cpu":
        raise NotTried(f"the device is {plan.device.type}: threads of the host compute little")
    return system.threads if plan.num_threads is None else plan.num_threads
