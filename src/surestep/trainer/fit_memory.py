"""The micro-batch sizes of a run with `micro_batch_size="fit"`: recorded, and used again."""

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from surestep.base.errors import ConfigError
from surestep.base.text import format_bytes
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.smaller_batches import Retry
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.launcher_env import request_restart
from surestep.engine.host_memory import read_host_memory
from surestep.engine.plan.batching import find_largest_share
from surestep.engine.plan.fitting import ALL, AS_IN_TRAINING, FoundSize, SizeChange, SizesByStep
from surestep.engine.plan.not_checked import not_checked
from surestep.engine.resolve.data import why_not_split
from surestep.engine.step.fitted_steps import FittedSteps
from surestep.record.events import find_events
from surestep.record.run_writer import RunWriter
from surestep.trainer.found_sizes import FoundSizes, load_sizes, locate_sizes, store_sizes
from surestep.trainer.planning import PreparedTask, TaskOrigin
from surestep.trainer.rank_zero import run_on_rank_zero
from surestep.trainer.resume import ResumeDecision
from surestep.trainer.session import Session

EVENT, OUT_OF_MEMORY = "micro_batch", "memory ran out"
_EARLIER = "an earlier run of this recipe on this machine found it"
_ESTIMATED = "by the estimated memory of a step"
_USABLE = 0.9  # of the free memory: an estimate may be too low by a tenth
_FRAGMENTED = 0.1  # of what is reserved, from which on a notice names it


def read_sizes(world: Communicator, recorder: RunWriter) -> list[dict[str, Any]]:
    """Return the sizes that the run has recorded, on all ranks."""
    path = recorder.folder / "events.jsonl"

    def read() -> list[dict[str, Any]]:
        return find_events(path, EVENT) if recorder.published and path.exists() else []

    return run_on_rank_zero(world, read)


def plan_first_sizes(
    world: Communicator,
    planned: PreparedTask,
    origin: TaskOrigin,
    recorder: RunWriter,
    decision: ResumeDecision,
) -> tuple[PreparedTask, list[dict[str, Any]]]:
    """Return it with the size that the run has recorded for its next step, or else a start.

    Also return all sizes that the run has recorded.
    """
    if not (planned.fits or planned.fits_evaluation):
        return planned, []
    known, step = read_sizes(world, recorder), 1
    if decision.checkpoint is not None and decision.parent is None:
        step += decision.checkpoint.record["progress"]["step"]
    size = _sizes_of(known, None).at(step)
    if size is None or not planned.fits:
        return planned.start_with(**find_start_on_ranks(world, planned, origin)), known
    first = min(entry["step"] for entry in known if entry["size"] == size)
    why = f"this run uses it from step {first} on"
    return planned.start_with(fitting=FoundSize(size, why, is_recorded=True)), known


def find_start_on_ranks(
    world: Communicator, planned: PreparedTask, origin: TaskOrigin
) -> dict[str, FoundSize]:
    """Return what `find_start` does on rank 0; all ranks call it."""
    find = partial(find_start, planned, origin)
    return run_on_rank_zero(world, find, decode=_as_found_sizes)


def _as_found_sizes(values: dict[str, Any]) -> dict[str, FoundSize]:
    return {name: FoundSize(*value) for name, value in values.items()}


def start_fitted(
    planned: PreparedTask, origin: TaskOrigin, memory: int | None = None
) -> PreparedTask:
    """Return it with a Plan that has the sizes that a new run starts with.

    `memory` is the bytes of a device that is not there; None is the device of this machine.
    """
    if not (planned.fits or planned.fits_evaluation):
        return planned
    return planned.start_with(**find_start(planned, origin, memory))


def find_start(
    planned: PreparedTask, origin: TaskOrigin, memory: int | None = None
) -> dict[str, FoundSize]:
    """Return the sizes to start with, by fields of TaskInfo: of earlier runs, or estimated.

    A field is missing if nothing is known: the start is then all of a batch. `memory` is that of a
    device that is not there.

    Raises:
        ConfigError: a batch does not fit, and splitting it changes the update.
    """
    # It imports the tracer of steps, which other runs do not need.
    from surestep.trainer.memory import find_largest_eval_batch, find_largest_micro_batch

    plan = planned.plan
    earlier = load_sizes(locate_sizes(planned, origin)) if memory is None else FoundSizes()
    free = _free_memory(planned) if memory is None else memory
    share = find_largest_share(plan.batch_size, plan.parallel_ranks)
    found: dict[str, FoundSize] = {}
    if planned.fits and earlier.training is not None:
        found["fitting"] = FoundSize(earlier.training, _EARLIER)
    elif (
        planned.fits
        and (size := _estimate(find_largest_micro_batch, planned, free, "a step")) is not None
    ):
        parts = -(-share // max(1, size))  # of about the same size
        found["fitting"] = FoundSize(-(-share // parts), _ESTIMATED)
    start, changes = found.get("fitting"), why_not_split(planned.info)
    if start is not None and start.size < share and changes and memory is not None:
        del found["fitting"]  # what fits is only asked for
    elif start is not None and start.size < share and changes:
        raise ConfigError(
            f"micro_batch_size='fit' would split a batch into micro-batches of {start.size} "
            f"({start.why}), and that changes the update: {changes}. Set "
            f"micro_batch_size={start.size} if the update may change, or "
            f"batch_size={start.size * plan.parallel_ranks}."
        )
    if planned.fits_evaluation and earlier.evaluation is not None:
        found["fitting_evaluation"] = FoundSize(earlier.evaluation, _EARLIER)
    elif (
        planned.fits_evaluation
        and planned.task.val_sets()
        and (size := _estimate(find_largest_eval_batch, planned, free, "an evaluation")) is not None
    ):
        found["fitting_evaluation"] = FoundSize(max(1, min(size, share)), _ESTIMATED)
    return found


def _estimate(
    find: Callable[[PreparedTask, int], int], planned: PreparedTask, free: float, what: str
) -> int | None:
    """Return the size that fits by an estimate; None if the memory of a step is not known."""
    try:
        return find(planned, int(min(_USABLE * free, sys.maxsize)))
    except ConfigError as error:
        not_checked(f"what {what} needs of memory", str(error.__cause__ or error))
        return None


def _free_memory(planned: PreparedTask) -> float:
    """Return the bytes that this process can still get on the device; infinity if not known.

    A kernel may grant more than it has, and then kills the process that writes to it.
    """
    device = planned.plan.device
    if device.type == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.mem_get_info(device)[0])
    if device.type == "cuda":
        return float(planned.system.cuda_memory[device.index or 0])
    room = None
    with suppress(ImportError):  # Windows shows no limits
        room = read_host_memory().room
    return math.inf if room is None else room


def _sizes_of(known: list[dict[str, Any]], split: str | None) -> SizesByStep:
    """Return the sizes of the evaluations of a split; None is the training."""
    return SizesByStep(
        (entry["step"], entry["size"]) for entry in known if entry.get("split") == split
    )


@dataclass(frozen=True)
class _OpenRun:
    """An open run whose batches are to fit in memory.

    Attributes:
        known: the sizes that the run has recorded.
        path: where sizes are kept for later runs.
    """

    session: Session
    planned: PreparedTask
    recorder: RunWriter
    known: list[dict[str, Any]]
    path: Path

    @property
    def is_shared(self) -> bool:
        """Whether several ranks take a step together, which cannot take it again together."""
        return self.session.loop.world.size > 1

    def store(self, **found: int) -> None:
        """Keep sizes for later runs, by fields of FoundSizes."""
        try:
            store_sizes(self.path, **found)
        except OSError as error:
            self.session.messages.notify_once(
                "Later runs of this recipe will not start with the size that was found: it cannot "
                f"be written to {self.path.parent} ({error.strerror or error}). Set "
                "SURESTEP_CACHE_DIR to a folder that can be written."
            )

    def record_change(self, change: SizeChange, text: str, **fields: str) -> None:
        """Make a smaller size durable, and print what happens now; several ranks end the run."""
        recorder = self.recorder
        append = recorder.durable_event_of_rank if self.is_shared else recorder.durable_event
        append(EVENT, why=OUT_OF_MEMORY, **fields, **_held(change))
        if self.is_shared:
            request_restart()
        else:
            self.session.messages.print_line(f"{text} {describe_fragmentation(change)}".rstrip())


def fit_memory(
    session: Session,
    planned: PreparedTask,
    origin: TaskOrigin,
    recorder: RunWriter,
    known: list[dict[str, Any]],
) -> None:
    """Train and evaluate in batches that fit in memory, if that is set."""
    if not (planned.fits or planned.fits_evaluation):
        return
    run = _OpenRun(session, planned, recorder, known, locate_sizes(planned, origin))
    if planned.fits and not session.finished:
        _fit_training(run)
    if planned.fits_evaluation:
        session.evaluations.fit_memory(FittedEvaluations(run).use_size)


def _fit_training(run: _OpenRun) -> None:
    """Take the steps of a session in the recorded sizes, and in smaller ones if memory runs out."""
    loop, planned, recorder = run.session.loop, run.planned, run.recorder
    sizes, step = _sizes_of(run.known, None), run.session.state.progress.step + 1
    if sizes.at(step) is None:
        size, planned_size = loop.loader.layout.micro_batch_size, planned.plan.micro_batch_size
        why = ALL if planned.info.fitting is None else planned.info.fitting.why
        if size < planned_size:
            why = f"the first batch ran out of memory in micro-batches of {planned_size}"
            run.store(training=size)
        recorder.durable_event(EVENT, step=step, size=size, why=why)
        sizes.add(step, size)
    recorder.note(micro_batch_size=sizes.at(step))

    def record(change: SizeChange) -> None:
        run.record_change(change, _describe_change(change))
        recorder.note(micro_batch_size=change.size)
        run.store(training=change.size)

    why_not = why_not_split(planned.info)
    if why_not:
        run.session.messages.notify_once(
            f"Smaller micro-batches would change the update ({why_not}), so a step that runs out "
            "of memory ends the run with the size to set."
        )
    loop.fit_memory(
        FittedSteps(loop.loader, sizes, record, why_not=why_not, is_shared=run.is_shared)
    )


class FittedEvaluations:
    """The sizes of the evaluations of an open run, by split."""

    def __init__(self, run: _OpenRun) -> None:
        self._run = run
        self._smallest = run.planned.plan.validation_batch_size
        self._sizes: dict[str, SizesByStep] = {}

    def use_size(self, loader: BatchLoader) -> Retry:
        """Split the data of a loader as recorded for this step; return what decides on retries."""
        split, step = loader.subset, self._run.session.state.progress.step
        if split not in self._sizes:
            self._sizes[split] = _sizes_of(self._run.known, split)
        size = self._sizes[split].at(step)
        if size is None:
            size, why = self._find_start(loader.layout.micro_batch_size)
            self._run.recorder.durable_event(EVENT, split=split, step=step, size=size, why=why)
            self._sizes[split].add(step, size)
        if size != loader.layout.micro_batch_size:
            loader.split_into(size)
        return partial(self._retry, split, step)

    def _find_start(self, size: int) -> tuple[int, str]:
        """Return where batches of a size start, and why: an option may set larger ones."""
        found = self._run.planned.info.fitting_evaluation
        reason = self._run.planned.plan.reason("validation.batch_size")
        is_fitted = reason.startswith("fit: ")
        if found is not None and (is_fitted or found.size < size):
            return found.size, found.why
        return size, AS_IN_TRAINING if is_fitted else reason

    def _retry(self, split: str, step: int, before: int, held: dict[str, Any]) -> bool:
        """Make a smaller size durable, and report it; several ranks cannot go back together."""
        change = SizeChange(step, before // 2, before, **held)
        text = (
            f"The evaluation of {split} ran out of memory in batches of {before}: all of it is "
            f"repeated in batches of {change.size}, as are later ones."
        )
        self._run.record_change(change, text, split=split)
        self._sizes[split].add(step, change.size)
        self._smallest = min(self._smallest, change.size)
        self._run.store(evaluation=self._smallest)
        return not self._run.is_shared


def _held(change: SizeChange) -> dict[str, Any]:
    return {name: value for name, value in change._asdict().items() if value is not None}


def _describe_change(change: SizeChange) -> str:
    return (
        f"Step {change.step} ran out of memory in micro-batches of {change.before}: it is taken "
        f"again in micro-batches of {change.size}, as are the steps after it."
    )


def describe_fragmentation(change: SizeChange) -> str:
    """Return what to set if much memory was reserved but not used; "" if not, or not known."""
    if change.allocated is None or not change.reserved:
        return ""
    unused = change.reserved - change.allocated
    if unused < _FRAGMENTED * change.reserved:
        return ""
    return (
        f"{format_bytes(unused)} of {format_bytes(change.reserved)} was reserved and not "
        "allocated (fragmentation): set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )
