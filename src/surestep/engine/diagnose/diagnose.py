"""Find what made a step not finite: the operation, its module, and the samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surestep.engine.batch import Batch, flatten_tensors
from surestep.engine.diagnose.bisect import BisectResult, Rows, SampleRef, search
from surestep.engine.diagnose.cause import NonFiniteCause
from surestep.engine.diagnose.module_tracker import ModuleTracker
from surestep.engine.diagnose.nonfinite_tracker import NonFiniteTracker
from surestep.engine.diagnose.output_fingerprint import Outputs
from surestep.engine.diagnose.rerun import RerunResult, preserve_state
from surestep.engine.diagnose.rerun import rerun_step as again_alone
from surestep.engine.diagnose.select_samples import CannotSplitBatchError
from surestep.engine.distributed.shards import to_local
from surestep.engine.state.average import BATCH_NORM
from surestep.engine.step.train_step import StepContext, compute_and_apply

Again = Callable[[StepContext, Batch, float], RerunResult]
Watched = Callable[[StepContext, Batch, float], tuple[RerunResult, NonFiniteCause | None]]


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a step that was not finite.

    Attributes:
        loss: of the step taken again, a mean over its items.
        bad: what was not finite then: "loss", and names of parameters.
        cause: what made the first value; None where that was not seen.
        samples: those that do it alone.
        weights: the largest absolute values of parameters, by name, largest first.
        outputs: a fingerprint of what the modules returned; None of what ranks found together.
    """

    loss: float
    bad: tuple[str, ...]
    cause: NonFiniteCause | None
    samples: BisectResult
    weights: dict[str, float]
    outputs: str | None = None

    @property
    def reproduced(self) -> bool:
        """Whether the step taken again was not finite either."""
        return bool(self.bad)


def diagnose(
    parts: StepContext,
    batch: Batch,
    *,
    index: Tensor | range | None,
    divisor: float | None = None,
    again: Again = again_alone,
) -> Diagnosis:
    """Take the step of the state's place again, and follow what is not finite to where it began.

    Nothing is moved: weights, buffers, gradients, modes and generators are put back. It takes as
    long as some dozens of steps, and reads the device after each operation.

    Args:
        parts: whose state is the one before the step.
        batch: of the step, on the device, as it was read.
        index: of the sample at each position of the epoch; None where there is none.
        divisor: of the loss, where the batch is a share; None counts its items.
        again: takes a batch again, up to its gradients; by itself where nothing else is said.
    """
    step = parts.state.progress.step
    batch = batch if parts.transform is None else parts.transform(batch, step)
    if divisor is None:
        divisor = batch.items if parts.loss.divides else 1.0
    if parts.freeze is not None:
        parts.freeze(parts.state.progress.steps_taken)
    outputs = Outputs()
    loss, bad, causes = _followed(parts, batch, divisor, partial(_watched, again, outputs))
    known = [cause for cause in causes if cause is not None]
    cause = known[0] if known else None
    samples = BisectResult(how="the step taken again is finite", known=False)
    if bad:
        samples = _samples(parts, batch, divisor, causes, again)
    found = tuple(SampleRef(each.position, _at(index, each.position)) for each in samples.samples)
    samples = replace(samples, samples=found, of=batch.samples)
    weights = largest_parameters(parts)
    return Diagnosis(loss, tuple(bad), cause, samples, weights, outputs.fingerprint)


def _followed(
    parts: StepContext, batch: Batch, divisor: float, watched: Watched
) -> tuple[float, list[str], list[NonFiniteCause | None]]:
    """Return the loss, what is not finite, and the cause in each micro-batch that is not.

    Each micro-batch is taken alone, and all of them together where each is finite; a step of the
    user's own takes the whole batch.
    """
    total, bad = 0.0, dict[str, None]()
    causes: list[NonFiniteCause | None] = []
    alone = parts.update is compute_and_apply and len(batch.micro_batches) > 1
    with preserve_state(parts):
        for micro in batch.micro_batches if alone else ():
            cause = None
            if micro.items:
                part = batch._replace(micro_batches=(micro,))
                ran, cause = watched(parts, part, divisor)
                bad |= dict.fromkeys(ran.bad)
                total += float(ran.loss_sum) / divisor
            causes.append(cause)
        if not bad:
            ran, cause = watched(parts, batch, divisor)
            bad, total = dict.fromkeys(ran.bad), float(ran.loss_sum) / divisor
            causes = [cause]
    return total, [name or "loss" for name in bad], causes


def _watched(
    again: Again, outputs: Outputs, parts: StepContext, batch: Batch, divisor: float
) -> tuple[RerunResult, NonFiniteCause | None]:
    """Take a step on a batch, and return what it came to with the cause that was earliest."""
    model = parts.state.model
    where = ModuleTracker({module: name for name, module in model.named_modules()}, outputs)
    watch = NonFiniteTracker(where, _there_before(parts, batch))
    with where.tracking(), watch:
        ran = again(parts, batch, divisor)
    causes = [watch.cause_of(each) for each in ran.bad.values()]
    known = [each for each in causes if each is not None]
    return ran, min(known, key=lambda each: each.order, default=None)


def _there_before(parts: StepContext, batch: Batch) -> dict[tuple[str, str], Tensor]:
    """Return what a step is given, with what to call it."""
    found: dict[tuple[str, str], Tensor] = {}
    for micro in batch.micro_batches:
        held: Mapping[str, Any] = {
            **{f"input {number}": each for number, each in enumerate(micro.args)},
            **{f"input {name!r}": each for name, each in micro.kwargs.items()},
            "the targets": micro.targets,
        }
        for name, each in held.items():
            for count, tensor in enumerate(flatten_tensors(each)):
                found["batch", f"{name}, tensor {count}" if count else name] = tensor
    model = parts.state.model
    for name, parameter in model.named_parameters():
        found["weights", name] = to_local(parameter.detach())
    for name, buffer in model.named_buffers():
        found["weights", name] = buffer
    return found


def _samples(
    parts: StepContext,
    batch: Batch,
    divisor: float,
    causes: list[NonFiniteCause | None],
    again: Again,
) -> BisectResult:
    def is_bad(part: Batch) -> bool:
        try:
            with preserve_state(parts):
                return bool(again(parts, part, divisor).bad)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            first = str(error).partition("\n")[0]
            raise CannotSplitBatchError(f"a step on a part of it fails ({first})") from error

    training = {module for module, mode in parts.train_modes.wanted if mode}
    alike = any(
        isinstance(each, BATCH_NORM) and (each in training or not each.track_running_stats)
        for each in parts.state.model.modules()
    )
    shapes = {tuple(each.shape) for each in parts.state.model.parameters()}
    suspects: list[tuple[int, ...]] = []
    each_its_own = len(causes) == len(batch.micro_batches)
    for micro, cause in zip(batch.micro_batches, causes if each_its_own else (), strict=False):
        shape = cause.output.shape if cause is not None and cause.output is not None else ()
        of_weights = cause is not None and cause.phase == "backward" and shape in shapes
        of_samples = shape[:1] == (micro.samples,) and not of_weights
        suspects.append(cause.rows if cause is not None and of_samples else ())
    rows: Rows = tuple(suspects)
    return search(batch, parts.loss, is_bad, suspects=rows, independent=not alike)


def largest_parameters(parts: StepContext, count: int = 3) -> dict[str, float]:
    """Return the largest absolute values of parameters, or of what this rank has of them."""
    held = {name: to_local(each.detach()) for name, each in parts.state.model.named_parameters()}
    named = {name: each.abs().max() for name, each in held.items() if each.numel()}
    if not named:
        return {}
    values = torch.stack([each.float().cpu() for each in named.values()]).tolist()
    ranked = sorted(zip(named, values, strict=True), key=lambda each: -each[1])
    return dict(ranked[:count])


def _at(index: Tensor | range | None, position: int) -> int | None:
    return None if index is None or position >= len(index) else int(index[position])
