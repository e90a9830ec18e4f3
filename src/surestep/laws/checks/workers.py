"""The number of data workers changes nothing."""

from functools import partial
from typing import Any

from surestep.engine.task.task import Task
from surestep.laws.check import Result, fail, hold, leave_out
from surestep.laws.run import Variant, set_workers
from surestep.laws.runner import Runner

LAW, NAME = "check", "workers"
_WORKERS, _PERSISTENT, _AHEAD = (
    "data.num_workers",
    "data.persistent_workers",
    "data.prefetch_factor",
)


def _load(workers: int, *, is_kept: bool, ahead: int) -> dict[str, Any]:
    return {_WORKERS: workers, _PERSISTENT: is_kept, _AHEAD: ahead}


def _change_loader(count: int, task: Task) -> Task:
    return set_workers(task, count)[0]


VARIANTS = (
    Variant("0 workers", {_WORKERS: 0}),
    Variant("1 worker, new in each epoch, 1 batch ahead", _load(1, is_kept=False, ahead=1)),
    Variant("3 persistent workers, 4 batches ahead", _load(3, is_kept=True, ahead=4)),
)

OF_LOADER = tuple(
    Variant(f"a DataLoader with num_workers={count}", change_task=partial(_change_loader, count))
    for count in (0, 1, 3)
)


def check(runner: Runner) -> Result:
    """Train with several numbers of workers."""
    if runner.facts.is_in_memory:
        return leave_out("The training data is tensors in memory, which no worker loads.")
    if runner.facts.is_stream:
        return leave_out("Workers share a stream, so its order depends on their number.")
    if runner.facts.has_no_data:
        return leave_out("The step of the Task makes its own data.")
    variants = OF_LOADER if runner.facts.has_loader else VARIANTS
    for variant in variants:
        finding = runner.compare(variant)
        if finding is not None:
            return fail(f"The run with {variant.name} is a different one", finding)
    return hold("; ".join(variant.name for variant in variants))
