"""Take a step that was not finite again in one process; on several ranks, leave it to a replay."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from surestep.base.errors import DataError, NonFiniteError, OutOfMemoryError, SurestepError
from surestep.base.text import format_bytes
from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.device import ran_out
from surestep.engine.diagnose.diagnose import (
    Diagnosis,
    StepHistory,
    describe_diagnosis,
    describe_samples,
    diagnose,
)
from surestep.engine.profile.oom import memory_snapshot
from surestep.engine.state.state import Progress
from surestep.engine.step.log_point import SKIP, describe_nonfinite_step
from surestep.engine.step.loop import Loop
from surestep.engine.step.train_step import StepResult
from surestep.record.batch_dump import BatchDump, gather_batch
from surestep.record.incident import folder_of, write_incident
from surestep.record.run import Run
from surestep.record.run_writer import RunWriter


@dataclass(frozen=True)
class IncidentReport:
    """A step that was not finite, and what was found out about it.

    Attributes:
        batch: of the step, as it was read; None where it could not be read again.
        is_own: the batch was given by the user, so it has no place in the data.
        diagnosis: None where there is none.
        text: what is told of it.
        packed: a batch of the user's own that several ranks have shares of, put together.
    """

    batch: Batch | None
    is_manual: bool
    diagnosis: Diagnosis | None
    text: str
    packed: BatchDump | None = None


def diagnose_local(
    loop: Loop, result: StepResult, own: Mapping[int, Batch], recent: StepHistory
) -> IncidentReport:
    """Take the step again where it can be, and say what made it not finite."""
    place, given = result.progress_before, own.get(result.progress_before.step)
    batch = given
    try:
        batch = read_batch(loop.loader, place) if given is None else loop.loader.move(given)
        index = None if given is not None else index_at(loop.loader, place.epoch)
        found = diagnose(loop.parts, batch, index=index)
    # The user's code runs in it, which may raise anything; the run's own error must be told.
    except Exception as error:
        text = f"What made it is not known: taking the step again failed ({_first_line(error)})."
        return IncidentReport(batch, given is not None, None, text)
    return IncidentReport(batch, given is not None, found, describe_diagnosis(found, recent))


def blame(loop: Loop, result: StepResult, batch: Batch) -> Diagnosis | None:
    """Find what made a step not finite that is skipped, with the batch at hand; None if unknown.

    Reading the batch again would disturb the pass over the data, which goes on after the step.
    """
    if loop.world.size > 1:
        return None
    place, loop.state.progress = loop.state.progress, result.progress_before
    try:
        return diagnose(loop.parts, batch, index=None)
    # The user's code runs in it, which may raise anything; the step is skipped all the same.
    except Exception:
        return None
    finally:
        loop.state.progress = place


def defer_to_replay(loop: Loop, given: Batch | None) -> IncidentReport:
    """Leave the search to a replay in one process, which reads the full batch."""
    text = (
        "What made it is looked for in one process, by the replay below: each of "
        f"{loop.world.size} ranks has a share of the batch."
    )
    return IncidentReport(given, given is not None, None, text)


def read_batch(feed: BatchLoader, place: Progress) -> Batch:
    """Read the batch of a place again.

    Raises:
        DataError: there is none.
    """
    batches = feed.batches(place.epoch, place.position)
    for batch in batches:
        return batch
    raise DataError(
        f"Epoch {place.epoch + 1} of the training data has no batch at position {place.position}."
    )


def index_at(feed: BatchLoader, epoch: int) -> Tensor | range | None:
    """Return the index of the sample at each position of an epoch; None for a stream."""
    if isinstance(feed.source, StreamLoader):
        return None
    order = feed.epoch_order(epoch)
    if order is not None:
        return order
    return None if feed.layout.samples is None else range(feed.layout.samples)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class NonFiniteHandler:
    """Makes the error of a step that was not finite say why, and keeps the step; see `Loop`.

    Args:
        loop: whose state is then the one before the step.
        recorder: of the run folder.
        save: writes a checkpoint of that state, where there is none; returns its folder.
        say: shows a line to whoever watches.

    Attributes:
        keeps: an incident is written; not of a rehearsal, whose folder does not stay.
    """

    def __init__(
        self, loop: Loop, recorder: RunWriter, save: Callable[[], Path], say: Callable[[str], None]
    ) -> None:
        self.loop = loop
        self.recorder = recorder
        self.save = save
        self.say = say
        self.keeps = True
        self.recent = StepHistory()
        loop.on_log.append(self.recent)
        loop.explain = self
        loop.blame = self.blame

    def blame(self, result: StepResult, batch: Batch) -> tuple[int, ...] | None:
        """Say why a step is skipped; return the positions of the samples that did it, if known."""
        found = blame(self.loop, result, batch)
        known = found is not None and found.samples.known and found.samples.is_specific
        reason = "which samples did it is not known"
        if self.loop.world.size > 1:
            reason = "only one process searches for the samples"
        if found is not None and found.reproduced:
            reason = describe_samples(found)
        if self.loop.world.is_first:
            self.say(f"Step {result.step} was not finite and is skipped: {reason.rstrip('.')}.")
        return tuple(each.position for each in found.samples.samples) if found and known else None

    def __call__(
        self, error: NonFiniteError, result: StepResult, own: Mapping[int, Batch]
    ) -> NonFiniteError:
        """Save first, since the user's code runs again in what comes then."""
        world, given = self.loop.world, own.get(result.progress_before.step)
        alone = world.size == 1
        if alone:
            self.say(f"Step {error.step} was not finite: it is taken again to find out why.")
        where: Path | str = ""
        try:
            checkpoint = self.save() if self.keeps else Path()
        except SurestepError as failed:
            checkpoint, where = Path(), f"No incident is kept: {failed}"
        packed = None if alone or given is None else gather_batch(world, given.micro_batches)
        if alone:
            seen = diagnose_local(self.loop, result, own, self.recent)
        else:
            seen = defer_to_replay(self.loop, given)
        seen = replace(seen, packed=packed)
        if self.keeps and not where:
            try:
                where = self._kept(result, seen, checkpoint)
                self.recorder.event("incident", step=result.step, path=f"incidents/{where.name}")
            except SurestepError as failed:
                where = f"No incident is kept: {failed}"
        return explain_error(
            error, result, seen, where, recipe=bool(self.recorder.run.config["recipe"])
        )

    def _kept(self, result: StepResult, seen: IncidentReport, checkpoint: Path) -> Path:
        """Write the incident, on the first rank; return its folder."""
        run = self.recorder.run
        if not self.loop.world.is_first:
            return folder_of(run.path, result.step)
        return save_incident(run, result, seen, checkpoint, self.recent)


def save_incident(
    run: Run, result: StepResult, seen: IncidentReport, checkpoint: Path, recent: StepHistory
) -> Path:
    """Write the incident of a step; return its folder.

    Raises:
        RunError: the disk is full or cannot be written.
    """
    packed = seen.packed or BatchDump(() if seen.batch is None else seen.batch.micro_batches)
    norms: dict[str, Any] = {"total": None, "each": {}}
    if result.norms is not None:
        each = result.norms.per_parameter.tolist()
        norms["total"] = float(result.norms.total)
        norms["each"] = list(zip(result.norms.names, each, strict=True))
    record = {
        "checkpoint": checkpoint.name,
        "run_config": run.config,
        "progress": result.progress_before._asdict(),
        "is_manual": seen.is_manual,
        "loss": None if result.loss_sum is None else float(result.loss_sum) / result.divisor,
        "grad_norm": norms["total"],
        "norms": norms["each"],
        "items": result.items,
        "samples": result.samples,
        "text": seen.text,
        "diagnosis": None if seen.diagnosis is None else asdict(seen.diagnosis),
        "before": [each._asdict() for each in recent.steps],
        "batch": packed.record or None,
        "not_saved": packed.lost,
    }
    return write_incident(run.path, result.step, record, packed.tensors)


def explain_error(
    error: NonFiniteError,
    result: StepResult,
    seen: IncidentReport,
    incident: Path | str,
    *,
    recipe: bool,
) -> NonFiniteError:
    """Return the error that tells why the step was not finite, and how to take it again.

    Args:
        error: as the log point made it.
        result: of the step.
        seen: what was found out.
        incident: its folder, or why there is none; empty where none is to be kept.
        recipe: the run can be built again by its recipe.
    """
    found = seen.diagnosis
    advice = f"To go on over such steps, say {SKIP}"
    if found is not None and found.samples.is_specific:
        indices = [each.index for each in found.samples.samples]
        if None not in indices:
            typed = " ".join(map(str, indices))
            advice += (
                f"; to leave samples out, --exclude-samples {typed} "
                f"(exclude_samples={indices} in Python)"
            )
    elif found is not None and found.samples.known:
        advice = f"Lower optim.lr, or look at the weights. {advice}"
    where = str(incident)
    if isinstance(incident, Path):
        typed = f"surestep replay {shlex.quote(where)}"
        where = f"Take it again with: {typed if recipe else f'surestep.replay({where!r}, task)'}"
    head = describe_nonfinite_step(result, error.loss, error.parameters)
    at = f"epoch {result.epoch + 1} at position {result.progress_before.position}"
    told = NonFiniteError(
        f"{head} {seen.text} The state is the one before it, in {at}. {advice}. {where}".strip(),
        step=error.step,
        loss=error.loss,
        parameters=error.parameters,
    )
    told.incident = str(incident) if isinstance(incident, Path) else None
    if found is not None:
        if found.cause is not None:
            told.module, told.operation = found.cause.module, found.cause.operation
        told.positions = tuple(each.position for each in found.samples.samples)
        indices = [each.index for each in found.samples.samples]
        told.samples = tuple(each for each in indices if each is not None)
    return told


def out_of_memory(
    recorder: RunWriter, loop: Loop, error: BaseException, *, measured: int | None = None
) -> OutOfMemoryError:
    """Write what is held in memory; return an error that says where, and what to do.

    Args:
        recorder: of the run folder.
        loop: whose state is held.
        error: torch's.
        measured: samples that an evaluation measured at once; None is a step.
    """
    plan, step = loop.plan, loop.state.progress.step
    if measured is None:
        name, where = f"step-{step + 1}", f"in step {step + 1}"
        hint = (
            f"Use a smaller micro_batch_size than {plan.micro_batch_size}, which changes no "
            "update, or activation_checkpointing='on'."
        )
    else:
        name, where = f"evaluation-{step}", f"in the evaluation after step {step}"
        hint = f"Use a smaller validation.batch_size than {measured}, which changes no metric."
    snapshot = memory_snapshot(loop.state, plan.device)
    path = recorder.write(f"out-of-memory-{name}.json", snapshot)
    kinds = ("weights", "gradients", "optimizer", "allocated")
    held = ", ".join(f"{kind} {format_bytes(snapshot[kind])}" for kind in kinds)
    first = str(error).partition("\n")[0]
    return OutOfMemoryError(f"Memory ran out {where}: {first} Held: {held}; more in {path}. {hint}")


@contextmanager
def evaluation_oom(loop: Loop, samples: int) -> Iterator[None]:
    """Tell of memory that runs out within, where so many samples are measured at once.

    Raises:
        OutOfMemory: it did.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if loop.out_of_memory is None or not ran_out(error):
            raise
        raise loop.out_of_memory(error, measured=samples) from error
