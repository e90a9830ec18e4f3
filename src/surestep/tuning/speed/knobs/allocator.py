"""Freed memory of a CPU kept in the process, on huge pages.

It helps a step on a CPU: without it, glibc gives the memory of activations back to the kernel, and
gets it again page by page.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("forward", "backward", "optimizer")
KEEPS_NUMBERS = True
IS_PROCESS_WIDE = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Keep freed memory, on huge pages if the system has them."""
    allocator = system.allocator
    if plan.device.type != "cpu":
        raise NotTried(
            "no option sets the allocator of a GPU: PYTORCH_CUDA_ALLOC_CONF is read when a process "
            "starts"
        )
    if allocator.name != "glibc":
        raise NotTried(f"malloc is not glibc's ({allocator.name})")
    if allocator.settings:
        raise NotTried(f"{allocator.settings[0]} is set in the environment")
    best = ["huge_pages"] if allocator.huge_pages else []
    kept = [] if plan.cpu_allocator != "default" else ["retain"]
    if plan.cpu_allocator == "huge_pages" or not (best or kept):
        raise NotTried(f"cpu_allocator={plan.cpu_allocator!r} is the best that this machine has")
    return [{"cpu_allocator": one} for one in (*best, *kept)]
