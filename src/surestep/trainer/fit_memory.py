"""The micro-batch sizes of a run with `micro_batch_size="fit"`: recorded, and used again."""

from functools import partial
from typing import Any

from surestep.base.text import format_bytes
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.smaller_batches import Retry
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.plan.fitting import ALL, FoundSize, SizeChange, SizesByStep
from surestep.engine.resolve.data import why_not_split
from surestep.engine.step.fitted_steps import FittedSteps
from surestep.record.events import find_events
from surestep.record.run_writer import RunWriter
from surestep.trainer.planning import PreparedTask
from surestep.trainer.rank_zero import run_on_rank_zero
from surestep.trainer.resume import ResumeDecision
from surestep.trainer.session import Session

EVENT, OUT_OF_MEMORY = "micro_batch", "memory ran out"
_FRAGMENTED = 0.1  # of what is reserved, from which on a notice names it


def read_sizes(world: Communicator, recorder: RunWriter) -> list[dict[str, Any]]:
    """Return the sizes that the run has recorded, on all ranks."""
    path = recorder.folder / "events.jsonl"

    def read() -> list[dict[str, Any]]:
        return find_events(path, EVENT) if recorder.published and path.exists() else []

    return run_on_rank_zero(world, read)


def plan_known_size(
    planned: PreparedTask, known: list[dict[str, Any]], decision: ResumeDecision
) -> PreparedTask:
    """Return it with the size that the run has recorded for its next step, if it has."""
    step = 1
    if decision.checkpoint is not None and decision.parent is None:
        step += decision.checkpoint.record["progress"]["step"]
    size = _sizes_of(known, None).at(step)
    if size is None or not planned.fits:
        return planned
    first = min(entry["step"] for entry in known if entry["size"] == size)
    return planned.start_with(fitting=FoundSize(size, f"this run uses it from step {first} on"))


def _sizes_of(known: list[dict[str, Any]], split: str | None) -> SizesByStep:
    """Return the sizes of the evaluations of a split; None is the training."""
    return SizesByStep(
        (entry["step"], entry["size"]) for entry in known if entry.get("split") == split
    )


def fit_memory(
    session: Session, planned: PreparedTask, recorder: RunWriter, known: list[dict[str, Any]]
) -> None:
    """Train and evaluate in batches that fit in memory, if that is set."""
    if planned.fits and not session.finished:
        _fit_training(session, planned, recorder, known)
    if planned.fits_evaluation:
        session.evaluations.fit_memory(FittedEvaluations(session, recorder, known).use_size)


def _fit_training(
    session: Session, planned: PreparedTask, recorder: RunWriter, known: list[dict[str, Any]]
) -> None:
    """Take the steps of a session in the recorded sizes, and in smaller ones if memory runs out."""
    loop, step = session.loop, session.state.progress.step + 1
    sizes = _sizes_of(known, None)
    if sizes.at(step) is None:
        size, planned_size = loop.loader.layout.micro_batch_size, planned.plan.micro_batch_size
        why = ALL if planned.info.fitting is None else planned.info.fitting.why
        if size < planned_size:
            why = f"the first batch ran out of memory in micro-batches of {planned_size}"
        recorder.durable_event(EVENT, step=step, size=size, why=why)
        sizes.add(step, size)
    is_shared, reasons = loop.world.size > 1, why_not_split(planned.info)
    record = partial(_record_on_rank if is_shared else _record, session, recorder)
    why_not = reasons[0] if reasons else ""
    loop.fit_memory(FittedSteps(loop.loader, sizes, record, why_not=why_not, is_shared=is_shared))


class FittedEvaluations:
    """The sizes of the evaluations of an open run, by split.

    Args:
        session: of the run.
        recorder: of its folder.
        known: the sizes that the run has recorded.
    """

    def __init__(self, session: Session, recorder: RunWriter, known: list[dict[str, Any]]) -> None:
        self._session, self._recorder, self._known = session, recorder, known
        self._sizes: dict[str, SizesByStep] = {}

    def use_size(self, loader: BatchLoader) -> Retry:
        """Split the data of a loader as recorded for this step; return what decides on retries."""
        split, step = loader.subset, self._session.state.progress.step
        if split not in self._sizes:
            self._sizes[split] = _sizes_of(self._known, split)
        size = self._sizes[split].at(step)
        if size is None:
            fields = {"step": step, "size": loader.layout.micro_batch_size, "why": "the start"}
            self._recorder.durable_event(EVENT, split=split, **fields)
            self._sizes[split].add(step, loader.layout.micro_batch_size)
        elif size != loader.layout.micro_batch_size:
            loader.split_into(size)
        return partial(self._retry, split, step)

    def _retry(self, split: str, step: int, before: int, held: dict[str, Any]) -> bool:
        """Make a smaller size durable, and report it; several ranks cannot go back together."""
        change = SizeChange(step, before // 2, before, **held)
        is_shared = self._session.loop.world.size > 1
        record = self._recorder.durable_event_of_rank if is_shared else self._recorder.durable_event
        record(EVENT, split=split, why=OUT_OF_MEMORY, **_held(change))
        self._sizes[split].add(step, change.size)
        if not is_shared:
            self._session.messages.print_line(
                f"The evaluation of {split} ran out of memory in batches of {before}: all of it "
                f"is repeated in batches of {change.size}, as are later ones. "
                f"{describe_fragmentation(change)}".rstrip()
            )
        return not is_shared


def _record_on_rank(session: Session, recorder: RunWriter, change: SizeChange) -> None:
    """Make a size durable on the rank that ran out of memory, which ends the run."""
    recorder.durable_event_of_rank(EVENT, why=OUT_OF_MEMORY, **_held(change))


def _held(change: SizeChange) -> dict[str, Any]:
    return {name: value for name, value in change._asdict().items() if value is not None}


def _record(session: Session, recorder: RunWriter, change: SizeChange) -> None:
    """Make a smaller size durable, and report it."""
    recorder.durable_event(EVENT, why=OUT_OF_MEMORY, **_held(change))
    session.messages.print_line(
        f"Step {change.step} ran out of memory in micro-batches of {change.before}: it is taken "
        f"again in micro-batches of {change.size}, as are the steps after it. "
        f"{describe_fragmentation(change)}".rstrip()
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
