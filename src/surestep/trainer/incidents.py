"""Non-finite steps and memory errors: their cause, and what the run folder keeps of them."""

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from surestep.base.errors import DataError, NonFiniteError, OutOfMemoryError, SurestepError
from surestep.base.text import format_bytes
from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.device import ran_out, suggest_micro_batch
from surestep.engine.diagnose.step_history import StepHistory
from surestep.engine.distributed.rank_status import capitalize_first
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.oom import memory_snapshot
from surestep.engine.state.state import Progress, State
from surestep.engine.step.log_point import (
    STATE_BEFORE,
    LogPoint,
    SkippedStep,
    describe_nonfinite_step,
    skip_hint,
)
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.engine.step.train_step import StepResult
from surestep.record.batch_dump import BatchDump, gather_batch
from surestep.record.incident import folder_of, write_incident
from surestep.record.run_writer import RunWriter

if TYPE_CHECKING:
    from surestep.engine.diagnose.diagnose import Diagnosis


def read_batch(loader: BatchLoader, progress: Progress) -> Batch:
    """Read the batch at a position of the training data; raise a DataError if there is none."""
    for batch in loader.batches(progress.epoch, progress.position):
        return batch
    raise DataError(
        f"Epoch {progress.epoch + 1} of the training data has no batch at position "
        f"{progress.position}."
    )


def epoch_index(loader: BatchLoader, epoch: int) -> Tensor | range | None:
    """Return the dataset index of the sample at each position of an epoch; None for a stream."""
    if isinstance(loader.source, StreamLoader):
        return None
    order = loader.epoch_order(epoch)
    if order is not None:
        return order
    samples = loader.count_positions(epoch)
    return None if samples is None else range(samples)


def sample_indices(loader: BatchLoader, skip: SkippedStep) -> list[int] | None:
    """Return the indices of the samples that caused a skip, or of all in its batch, if known."""
    index = epoch_index(loader, skip.epoch)
    if skip.positions is None or index is None:
        return None
    positions = range(*skip.positions) if skip.guilty is None else skip.guilty
    return [int(index[position]) for position in positions]


@dataclass(frozen=True)
class _Cause:
    """What is known of why a step is not finite.

    Attributes:
        text: sentences for the error.
        diagnosis: None if the step was not run again, or failed.
        batch: what the incident saves of it.
        is_manual: it was passed to `train_step`, so it cannot be read from the data.
    """

    text: str
    diagnosis: "Diagnosis | None"
    batch: BatchDump
    is_manual: bool


class NonFiniteHandler(Part):
    """Explains non-finite steps and saves incidents.

    One process runs the step again to find its cause. Several ranks leave that to a replay. `save`
    saves the state before the step if needed.

    Attributes:
        keeps: whether incidents are saved; False in a dry run.
    """

    def __init__(
        self,
        loop: Loop,
        recorder: RunWriter,
        save: Callable[[], Path],
        print_line: Callable[[str], None],
    ) -> None:
        self.keeps = True
        self._loop = loop
        self._recorder = recorder
        self._save = save
        self._print_line = print_line
        self._recent = StepHistory()
        self._manual: dict[int, Batch] = {}

    def keep_batch(self, batch: Batch, step: int) -> None:
        """Keep the batch of a manual step until it is logged: it cannot be read again.

        Args:
            batch: as it was passed, not yet on the device.
            step: the steps before it.
        """
        self._manual[step] = batch

    def on_log(self, state: State, point: LogPoint) -> None:
        """Remember the steps, and drop their batches."""
        self._recent(point)
        last = point.first_step + len(point.loss) - 1
        self._manual = {step: batch for step, batch in self._manual.items() if step >= last}

    def on_skip(self, state: State, result: StepResult, batch: Batch) -> tuple[int, ...] | None:
        """Report a skipped step; return the positions of the samples that caused it, if known."""
        found = None
        # `diagnose` takes the step's number from the progress, for the transform of the batch, the
        # learning rate and the frozen parts; the skipped step has been added to it already.
        now, state.progress = state.progress, result.progress_before
        reason = "which samples caused it is not known"
        if self._loop.world.size == 1:
            is_manual = result.progress_before.step in self._manual
            try:
                # Only for such a step: it takes 4 ms to import.
                from surestep.engine.diagnose.diagnose import describe_samples, diagnose

                index = None if is_manual else epoch_index(self._loop.loader, batch.epoch)
                found = diagnose(self._loop.context, batch, index=index)
            except Exception as error:  # of the user's code; the step is skipped all the same
                reason += f" ({error!r} in the repeated step)"
        state.progress = now
        if found is not None and found.reproduced:
            reason = describe_samples(found).rstrip(".")
        self._print_line(f"Step {result.step} was not finite and is skipped: {reason}.")
        if found is None or not (found.samples.known and found.samples.is_specific):
            return None
        return tuple(sample.position for sample in found.samples.samples)

    def on_error(
        self, state: State, error: Exception, place: StepResult | int | None
    ) -> NonFiniteError | None:
        """Save the state, find the cause, write the incident; return the error with all of it."""
        if not isinstance(error, NonFiniteError) or not isinstance(place, StepResult):
            return None
        result, (manual, self._manual) = place, (self._manual, {})
        if self._loop.world.size == 1:
            self._print_line(f"Step {error.step} was not finite: running it again to find why.")
        checkpoint, where = None, ""
        try:  # first, since the user's code runs again after it
            checkpoint = self._save() if self.keeps else None
        except SurestepError as failed:
            where = f"No incident is saved: {failed}"
        found = self._inspect(result, manual.get(result.progress_before.step))
        if checkpoint is not None:
            try:
                error.incident = str(self._write(result, found, checkpoint))
                command = f"surestep.replay({error.incident!r}, task)"
                if self._recorder.run.config["recipe"]:
                    command = f"surestep replay {shlex.quote(error.incident)}"
                where = f"Replay the step with: {command}"
            except SurestepError as failed:
                where = f"No incident is saved: {failed}"
        _add_explanation(error, result, found, where, self._loop.plan)
        return error

    def _inspect(self, result: StepResult, manual: Batch | None) -> _Cause:
        """Run the step again and find its cause; on several ranks only collect its batch."""
        loop, progress, is_manual = self._loop, result.progress_before, manual is not None
        if loop.world.size > 1:
            text = (
                f"{loop.world.size} ranks do not look for the cause, since each has a share of the "
                "batch: replay the step in one process."
            )
            dump = BatchDump(())
            if manual is not None:
                dump = gather_batch(loop.world, manual.micro_batches)
            return _Cause(text, None, dump, is_manual)
        diagnosis, dump = None, BatchDump(())
        try:
            # Only for such a step: it takes 4 ms to import.
            from surestep.engine.diagnose.diagnose import describe_diagnosis, diagnose

            if manual is None:
                index = epoch_index(loop.loader, progress.epoch)
                batch = read_batch(loop.loader, progress)
            else:
                index, batch = None, loop.loader.move(manual)
            dump = BatchDump(batch.micro_batches)
            diagnosis = diagnose(loop.context, batch, index=index)
            text = describe_diagnosis(diagnosis, self._recent)
        except Exception as error:  # of the user's code; the run's own error must be reported
            first = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            text = f"The cause is not known: running the step again failed ({first})."
        return _Cause(text, diagnosis, dump, is_manual)

    def _write(self, result: StepResult, found: _Cause, checkpoint: Path) -> Path:
        """Write the incident's folder on rank 0."""
        run, norms = self._recorder.run, result.norms
        folder = folder_of(run.path, result.step)
        if self._loop.world.is_first:
            values = [] if norms is None else norms.per_parameter.tolist()
            total = result.loss_sum
            loss = None if total is None else float(total) / result.divisor
            record = {
                "checkpoint": checkpoint.name,
                "run_config": run.config,
                "progress": result.progress_before._asdict(),
                "is_manual": found.is_manual,
                "loss": loss,
                "grad_norm": None if norms is None else float(norms.total),
                "norms": [] if norms is None else list(zip(norms.names, values, strict=True)),
                "items": result.items,
                "samples": result.samples,
                "text": found.text,
                "diagnosis": None if found.diagnosis is None else asdict(found.diagnosis),
                "before": [step._asdict() for step in self._recent.steps],
                "batch": found.batch.record or None,
                "not_saved": found.batch.lost,
            }
            write_incident(run.path, result.step, record, found.batch.tensors)
        self._recorder.event("incident", step=result.step, path=f"incidents/{folder.name}")
        return folder


def _add_explanation(
    error: NonFiniteError, result: StepResult, found: _Cause, where: str, plan: Plan
) -> None:
    """Add to the error its cause, its samples, what to do, and how to replay the step."""
    diagnosis = found.diagnosis
    samples = () if diagnosis is None else diagnosis.samples.samples
    indices = [sample.index for sample in samples if sample.index is not None]
    advice = capitalize_first(skip_hint(plan))
    if diagnosis is not None and diagnosis.samples.is_specific:
        if len(indices) == len(samples):
            typed = " ".join(map(str, indices))
            advice += (
                f"; to exclude the samples, --exclude-samples {typed} --allow exclude_samples "
                f"(exclude_samples={indices}, and allow=('exclude_samples',) to resume this run, "
                "in Python)"
            )
    elif diagnosis is not None and diagnosis.samples.known:
        advice = f"Use a lower optim.lr, or inspect the weights. {advice}"
    head = describe_nonfinite_step(result, error.loss, error.parameters)
    at = f"epoch {result.epoch + 1} at position {result.progress_before.position}"
    text = f"{head} {found.text} {STATE_BEFORE} It is in {at}. {advice}. {where}"
    error.args = (text.strip(),)
    if diagnosis is not None and diagnosis.cause is not None:
        error.module, error.operation = diagnosis.cause.module, diagnosis.cause.operation
    error.positions = tuple(sample.position for sample in samples)
    error.samples = tuple(indices)


class ExplainMemory(Part):
    """Writes what is in memory if it runs out, and says what to set.

    Args:
        recorder: of the run folder.
        plan: the options of the run.
    """

    def __init__(self, recorder: RunWriter, plan: Plan) -> None:
        self._recorder, self._plan = recorder, plan

    def on_error(
        self, state: State, error: Exception, place: StepResult | int | None
    ) -> OutOfMemoryError | None:
        """Return an error with the sizes and what to set."""
        if not ran_out(error):
            return None
        plan, step = self._plan, state.progress.step
        if isinstance(place, int):
            name, where = f"evaluation-{step}", f"in the evaluation after step {step}"
            hint = f"Use a smaller validation.batch_size than {place}: no metric changes."
        else:
            name, where = f"step-{step + 1}", f"in step {step + 1}"
            hint = suggest_micro_batch(plan.micro_batch_size)
        snapshot = memory_snapshot(state, plan.device)
        path = self._recorder.write(f"out-of-memory-{name}.json", snapshot)
        kinds = ("weights", "gradients", "optimizer", "allocated")
        sizes = ", ".join(f"{kind} {format_bytes(snapshot[kind])}" for kind in kinds)
        first = str(error).partition("\n")[0]
        return OutOfMemoryError(
            f"Memory ran out {where}: {first} In memory: {sizes}; more in {path}. {hint}"
        )
