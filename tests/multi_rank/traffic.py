"""Measure the traffic between ranks in a step with torch's profiler."""

import math
from collections import defaultdict
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

from surestep.engine.distributed.gloo_threads import wait_until_idle
from surestep.trainer.session import Session


def traffic_of_a_step(session: Session) -> dict[str, list[int]]:
    """Take one more step; return its traffic."""
    loop = session.loop
    batch = loop.loader.move(next(loop.loader.batches(0)))
    return traffic(lambda: loop.step(batch))


def traffic(act: Callable[[], object]) -> dict[str, list[int]]:
    """Return the elements of each gloo collective during a call, by name."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        act()
        wait_until_idle()
    found = defaultdict(list)
    # `seen.events()` would first wrap the thousand events of other names.
    for event in seen.profiler.kineto_results.events():
        if event.name().startswith("gloo:"):
            found[event.name().removeprefix("gloo:")].append(sum(map(math.prod, event.shapes())))
    return {name: sorted(sizes) for name, sizes in found.items()}
