"""Take the step of an incident again, as it was or with something changed."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError, RunError, SurestepError
from surestep.base.paths import require_local_path
from surestep.config.config import Config
from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.diagnose.bisect import CannotSplitBatchError, select_samples
from surestep.engine.diagnose.diagnose import Diagnosis, describe_diagnosis, diagnose
from surestep.engine.model.precision import torch_settings
from surestep.engine.state.state import Progress
from surestep.engine.step.loop import Loop
from surestep.engine.step.train_step import StepResult, train_step
from surestep.engine.task.task import Task
from surestep.record.batch_dump import decode_batch
from surestep.record.checkpoint.errors import CheckpointVanishedError
from surestep.record.checkpoint.load import load_into_state
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.incident import Incident, read_incident
from surestep.trainer.build import build
from surestep.trainer.incidents import index_at, read_batch
from surestep.trainer.planning import apply_init_weights, plan_task


@dataclass(frozen=True)
class StepNumbers:
    """What a step came to.

    Attributes:
        loss: a mean over its items.
        grad_norm: of all gradients, before clipping; None where there were none.
        finite: whether both are.
        module: where the first value was made that was not finite.
        operation: what made it, or the tensor in which it stood.
        samples: those that do it alone: indices in the data set, else positions.
        text: all of it in words.
        outputs: a fingerprint of what is finite of what the modules returned; None of an incident
            that has none.
    """

    loss: float
    grad_norm: float | None
    finite: bool
    module: str | None
    operation: str | None
    samples: tuple[int, ...]
    text: str
    outputs: str | None


@dataclass(frozen=True)
class ReplayResult:
    """A step taken again.

    Attributes:
        step: its number, from 1.
        changes: what was changed on purpose.
        recorded: what it came to in the run.
        now: what it comes to now.
        differing: gradient norms that are not the same bit for bit, by parameter: (then, now).
        as_recorded: whether loss, gradient norm, each parameter's and what the modules returned are
            the same bit for bit, and not all of it NaN.
        can_tell: whether something finite was recorded, since NaN is the same in any step.
        has_each: whether the incident has the norm of each parameter: under DeepSpeed above stage 0
            the ranks have pieces of gradients, and there the others are compared alone.
    """

    step: int
    changes: tuple[str, ...]
    recorded: StepNumbers
    now: StepNumbers
    differing: dict[str, tuple[float, float]]
    as_recorded: bool
    can_tell: bool
    has_each: bool


def replay(
    incident: str | Path,
    task: Task,
    *,
    precision: str | None = None,
    without: Sequence[int] = (),
) -> ReplayResult:
    """Run the step of an incident again, from the state before it and on the same batch.

    The weights of that state are loaded into the Task's model. Nothing is written to the run
    folder.

    Args:
        incident: folder of the incident, `RUN/incidents/step-XXXXXXXX`.
        task: built as when the run was started.
        precision: a different precision, such as "fp32"; None is that of the run.
        without: samples to exclude, by index in the dataset; by row if the batch was made by your
            own loop.

    Raises:
        RunError: there is no incident, its batch was not saved and cannot be read again, or the
            model fails on it.
        ConfigError: a sample is not in the batch, or the batch cannot be split.
        CheckpointError: the state before the step is missing, or does not fit the Task.
    """
    found = read_incident(require_local_path(incident))
    checkpoint = _state_before(found)
    planned = plan_task(task, _config(found, precision))
    with ExitStack() as settings:
        settings.enter_context(torch_settings(planned.plan))
        if checkpoint.record.get("base"):
            apply_init_weights(planned)
        loop = build(planned, settings, (), fresh=False)
        settings.callback(loop.loader.close)
        load_into_state(checkpoint, loop.state)
        batch = _batch(found, loop.loader)
        index = None if found.record["is_manual"] else index_at(loop.loader, batch.epoch)
        if without:
            batch = _without(batch, without, index, loop)
        batch = loop.loader.move(batch)
        diagnosis, result = _taken(found, loop, batch, index)
        now = _figures(result, diagnosis)
    changes = [] if precision is None else [f"precision {precision}"]
    changes += [f"without {', '.join(map(str, without))}"] if without else []
    return _compared(found, tuple(changes), now, result)


def _state_before(incident: Incident) -> CheckpointReader:
    try:
        return open_checkpoint(incident.checkpoint)
    except CheckpointVanishedError as error:
        raise CheckpointVanishedError(
            f"{error} It is the state before step {incident.step}. Put a copy of it back there, or "
            "train the same in another folder (--run, run= in Python): it comes to the same step."
        ) from error


def _config(incident: Incident, precision: str | None) -> Config:
    options = dict(incident.record["run_config"]["config"])
    if precision is not None and precision != options.get("precision"):
        # The loss scale is fp16's alone, and would be refused.
        options = {name: each for name, each in options.items() if not name.startswith("scaler.")}
        options["precision"] = precision
    return Config.from_options(options).single_process()


def _batch(incident: Incident, feed: BatchLoader) -> Batch:
    """Return the batch as it was kept, or read it again by its place."""
    place, lost = Progress(**incident.record["progress"]), incident.record.get("not_saved")
    if incident.record.get("batch") and not lost:
        micro_batches = decode_batch(incident.record["batch"], incident.tensors())
        end = place.position + sum(each.samples for each in micro_batches)
        return feed.batch(list(micro_batches), (place.epoch, place.position, end))
    if incident.record["is_manual"]:
        what = ", ".join(lost) if lost else "anything"
        raise RunError(
            f"{incident.path} cannot be taken again: the batch was given to train_step(), and it "
            f"has what could not be kept ({what}). Give tensors, numbers and text."
        )
    return read_batch(feed, place)


def _taken(
    incident: Incident, loop: Loop, batch: Batch, index: Any
) -> tuple[Diagnosis, StepResult]:
    try:
        return diagnose(loop.parts, batch, index=index), train_step(loop.parts, batch)
    except SurestepError:
        raise
    except Exception as error:  # of the user's model, which may raise anything
        raise RunError(
            f"{incident.path} cannot be taken again: the model failed on its batch with {error!r}. "
            "Either its files were changed, or the Task is not the one of that run."
        ) from error


def _without(batch: Batch, without: Sequence[int], index: Any, loop: Loop) -> Batch:
    """Leave samples out.

    Raises:
        ConfigError: one is not there, or the batch cannot be cut.
    """
    known = [
        [
            each if index is None else int(index[each])
            for each in range(micro.position, micro.position + micro.samples)
        ]
        for micro in batch.micro_batches
    ]
    there = {each for micro in known for each in micro}
    foreign = [each for each in without if each not in there]
    if foreign:
        raise ConfigError(
            f"Samples {foreign} are not in the batch of that step. It has {sorted(there)}."
        )
    rows = [[row for row, each in enumerate(micro) if each not in set(without)] for micro in known]
    try:
        return select_samples(batch, rows, loop.parts.loss)
    except CannotSplitBatchError as error:
        raise ConfigError(f"Samples cannot be left out of that batch: {error}.") from error


def _figures(result: StepResult, diagnosis: Diagnosis) -> StepNumbers:
    loss = float(result.loss)
    norm = None if result.norms is None else float(result.norms.total)
    cause, found = diagnosis.cause, diagnosis.samples.samples
    samples = [each.position if each.index is None else each.index for each in found]
    finite = all(each is None or abs(each) < float("inf") for each in (loss, norm))
    return StepNumbers(
        loss,
        norm,
        finite,
        cause.module if cause else None,
        (cause.operation or cause.name) if cause else None,
        tuple(samples),
        "It is finite." if finite else describe_diagnosis(diagnosis),
        diagnosis.outputs,
    )


def _recorded(incident: Incident) -> StepNumbers:
    record = incident.record
    norm = None if record["grad_norm"] is None else float(record["grad_norm"])
    diagnosis = record.get("diagnosis") or {}
    cause = diagnosis.get("cause") or {}
    found = (diagnosis.get("samples") or {}).get("samples") or []
    return StepNumbers(
        float(record["loss"]),
        norm,
        False,
        cause.get("module"),
        cause.get("operation") or cause.get("name"),
        tuple(each["position"] if each["index"] is None else each["index"] for each in found),
        str(record["text"]),
        diagnosis.get("outputs"),
    )


def _compared(
    incident: Incident, changes: tuple[str, ...], now: StepNumbers, result: StepResult
) -> ReplayResult:
    try:
        recorded = _recorded(incident)
        then = [(str(name), float(value)) for name, value in incident.record["norms"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{incident.path} cannot be read: {error!r}.") from error
    here = []
    if result.norms is not None:
        here = list(zip(result.norms.names, result.norms.per_parameter.tolist(), strict=True))
    differing = {
        name: (before, value)
        for (name, before), (_, value) in zip(then, here, strict=False)
        if not _same(before, value)
    }
    has_each = bool(then) or not here
    same = [name for name, _ in then] == [name for name, _ in here] and not differing
    same = same or not has_each
    same = same and _same(recorded.loss, now.loss) and _same(recorded.grad_norm, now.grad_norm)
    same = same and recorded.outputs in (None, now.outputs)
    numbers = [recorded.loss, *(value for _, value in then)]
    can_tell = recorded.outputs is not None or any(map(math.isfinite, numbers))
    return ReplayResult(
        incident.step, changes, recorded, now, differing, same and can_tell, can_tell, has_each
    )


def _same(one: float | None, other: float | None) -> bool:
    """Say whether two numbers are the same; NaN is the same as NaN."""
    return one == other or (one != one and other != other)
