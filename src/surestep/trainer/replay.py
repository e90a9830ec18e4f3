"""Replay: run the step of an incident again, unchanged or with something changed."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from surestep.base.errors import ConfigError, RunError, SurestepError
from surestep.base.paths import require_local_path
from surestep.config.config import Config
from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.diagnose.bisect import CannotSplitBatchError, select_samples
from surestep.engine.diagnose.diagnose import describe_diagnosis, diagnose
from surestep.engine.model.precision import torch_settings
from surestep.engine.state.state import Progress
from surestep.engine.step.train_step import StepResult, train_step
from surestep.engine.task.task import Task
from surestep.record.batch_dump import decode_batch
from surestep.record.checkpoint.load import prepare_load
from surestep.record.checkpoint.manifest import CheckpointVanishedError
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.incident import RECORD, Incident, read_incident
from surestep.record.pretrained import load_init_weights
from surestep.trainer.build import build
from surestep.trainer.incidents import epoch_index, read_batch
from surestep.trainer.planning import plan_task


@dataclass(frozen=True)
class StepNumbers:
    """The numbers of a step.

    Attributes:
        loss: the mean over its items.
        grad_norm: of all gradients, before clipping; None if there were none.
        finite: whether both are.
        module: the module in which the first non-finite value was computed.
        operation: the operation that computed it, or the tensor that had it.
        samples: the samples that cause it alone: dataset indices, or positions without those.
        text: all of it as text.
        outputs: a fingerprint of the finite values that modules returned; None if not recorded.
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
    """A step that was run again.

    Attributes:
        step: its number, from 1.
        changes: what was changed on purpose.
        recorded: its numbers in the run.
        now: its numbers in the replay.
        differing: gradient norms that are not bitwise identical, by parameter: (recorded, now).
        as_recorded: whether all recorded numbers are bitwise identical, and not all NaN.
        is_comparable: whether a finite number was recorded; NaN is the same in every step.
    """

    step: int
    changes: tuple[str, ...]
    recorded: StepNumbers
    now: StepNumbers
    differing: dict[str, tuple[float, float]]
    as_recorded: bool
    is_comparable: bool


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

    Returns:
        The numbers of the step in the run and now, on the host.

    Raises:
        RunError: there is no incident, its batch was not saved and cannot be read again, or the
            model fails on it.
        ConfigError: a sample is not in the batch, or the batch cannot be split.
        CheckpointError: the state before the step is missing, or does not fit the Task.
    """
    found = read_incident(require_local_path(incident))
    checkpoint = _open_state_before(found)
    planned = plan_task(task, _config(found, precision))
    with ExitStack() as settings:
        settings.enter_context(torch_settings(planned.plan))
        if checkpoint.record.get("base"):
            load_init_weights(planned.model, planned.task.init)
        loop = build(planned, settings, (), fresh=False).loop
        settings.callback(loop.loader.close)
        prepare_load(checkpoint, loop.state)()
        batch = _batch(found, loop.loader)
        index = None if found.record["is_manual"] else epoch_index(loop.loader, batch.epoch)
        if without:
            rows = _rows_to_keep(batch, without, index)
            try:
                batch = select_samples(batch, rows, loop.context.loss)
            except CannotSplitBatchError as error:
                raise ConfigError(f"Samples of that batch cannot be excluded: {error}.") from error
        batch = loop.loader.move(batch)
        try:
            diagnosis = diagnose(loop.context, batch, index=index)
            result = train_step(loop.context, batch)
        except SurestepError:
            raise
        except Exception as error:  # of the user's model
            raise RunError(
                f"{found.path} cannot be replayed: the model failed on its batch with {error!r}. "
                "Either its files were changed, or the Task is not the one of that run."
            ) from error
        loss = float(result.loss)
        norm = None if result.norms is None else float(result.norms.total)
        finite = math.isfinite(loss) and (norm is None or math.isfinite(norm))
        text = "It is finite." if finite else describe_diagnosis(diagnosis)
        found_now = {"loss": loss, "grad_norm": norm, "text": text, "diagnosis": asdict(diagnosis)}
        now = _step_numbers(found_now, finite=finite)
    changes = [] if precision is None else [f"precision {precision}"]
    changes += [f"without {', '.join(map(str, without))}"] if without else []
    return _compare(found, tuple(changes), now, result)


def _open_state_before(incident: Incident) -> CheckpointReader:
    try:
        return open_checkpoint(incident.checkpoint)
    except CheckpointVanishedError as error:
        raise CheckpointVanishedError(
            f"{error} It is the state before step {incident.step}. Copy it back there, or train "
            "the same in another folder (--run, run= in Python): the same step fails."
        ) from error


def _config(incident: Incident, precision: str | None) -> Config:
    options = dict(incident.record["run_config"]["config"])
    locations = dict.fromkeys(options, str(incident.path / RECORD))
    if precision is not None and precision != options.get("precision"):
        # Options of the loss scale are rejected without fp16.
        options = {name: value for name, value in options.items() if name[:7] != "scaler."}
        options["precision"] = precision
    return Config.from_options(options, locations).single_process()


def _batch(incident: Incident, loader: BatchLoader) -> Batch:
    """Return the batch from the incident's file, or read it again by its position."""
    progress, lost = Progress(**incident.record["progress"]), incident.record.get("not_saved")
    if incident.record.get("batch") and not lost:
        micro_batches = decode_batch(incident.record["batch"], incident.tensors())
        end = progress.position + sum(micro_batch.samples for micro_batch in micro_batches)
        return loader.batch(list(micro_batches), (progress.epoch, progress.position, end))
    if incident.record["is_manual"]:
        what = ", ".join(lost) if lost else "anything"
        raise RunError(
            f"{incident.path} cannot be replayed: the batch was passed to train_step(), and a part "
            f"of it could not be saved ({what}). Pass tensors, numbers and text."
        )
    return read_batch(loader, progress)


def _rows_to_keep(
    batch: Batch, without: Sequence[int], index: Tensor | range | None
) -> list[list[int]]:
    """Return the rows of each micro-batch that stay; raise a ConfigError for a foreign sample."""
    known = []
    for micro in batch.micro_batches:
        positions = range(micro.position, micro.position + micro.samples)
        known.append([at if index is None else int(index[at]) for at in positions])
    there = {sample for samples in known for sample in samples}
    if foreign := [sample for sample in without if sample not in there]:
        raise ConfigError(
            f"Samples {foreign} are not in the batch of that step. It has {sorted(there)}."
        )
    return [
        [row for row, sample in enumerate(samples) if sample not in without] for samples in known
    ]


def _step_numbers(record: Mapping[str, Any], *, finite: bool) -> StepNumbers:
    """Return the numbers of a step from the record of an incident, or one like it."""
    diagnosis = record.get("diagnosis") or {}
    cause = diagnosis.get("cause") or {}
    samples = (diagnosis.get("samples") or {}).get("samples") or []
    return StepNumbers(
        float(record["loss"]),
        None if record["grad_norm"] is None else float(record["grad_norm"]),
        finite,
        cause.get("module"),
        cause.get("operation") or cause.get("name"),
        tuple(s["position"] if s["index"] is None else s["index"] for s in samples),
        str(record["text"]),
        diagnosis.get("outputs"),
    )


def _compare(
    incident: Incident, changes: tuple[str, ...], now: StepNumbers, result: StepResult
) -> ReplayResult:
    try:
        recorded = _step_numbers(incident.record, finite=False)
        then = {str(name): float(value) for name, value in incident.record["norms"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{incident.path} cannot be read: {error!r}.") from error
    here: dict[str, float] = {}
    if result.norms is not None:
        here = dict(zip(result.norms.names, result.norms.per_parameter.tolist(), strict=True))
    both = [name for name in then if name in here]
    differing = {n: (then[n], here[n]) for n in both if not _is_same(then[n], here[n])}
    same = (
        (not then or list(then) == list(here))  # DeepSpeed may have no norm of each parameter
        and not differing
        and _is_same(recorded.loss, now.loss)
        and _is_same(recorded.grad_norm, now.grad_norm)
        and recorded.outputs in (None, now.outputs)
    )
    is_comparable = recorded.outputs is not None or any(
        map(math.isfinite, [recorded.loss, *then.values()])
    )
    return ReplayResult(
        incident.step, changes, recorded, now, differing, same and is_comparable, is_comparable
    )


def _is_same(one: float | None, other: float | None) -> bool:
    """Return whether two numbers are the same; NaN is the same as NaN."""
    return one == other or (one != one and other != other)
