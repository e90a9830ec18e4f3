"""Log points: the values of the last steps, read from the device at once."""

import json
import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from surestep.base.errors import NonFiniteError
from surestep.engine.batch import Batch
from surestep.engine.device import sum_dtype
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import Progress
from surestep.engine.step.train_step import StepResult

Reason = Literal["overflow", "nonfinite", "no_items", "spike"]
LoggedSeries = dict[str, list[float | None]]  # by name, an entry for each step


class SkippedStep(NamedTuple):
    """A step that updated nothing, where in the data its batch was, and why.

    `positions` are its first position in the epoch and the end; None for a batch of `train_step()`.
    `guilty` are the positions of the samples that caused it; None if that is not known.
    """

    step: int
    epoch: int
    positions: tuple[int, int] | None
    reason: Reason
    guilty: tuple[int, ...] | None = None


def skipped_step(result: StepResult, batch: Batch) -> SkippedStep:
    """Describe a step that updated nothing."""
    outcome, first = result.outcome, result.progress_before.position
    placed = batch.position == first and batch.end > first
    where = (first, batch.end) if placed else None
    reason: Reason = "spike" if batch.after_spike else "no_items"
    if outcome.overflow or outcome.nonfinite:
        reason = "overflow" if outcome.overflow else "nonfinite"
    return SkippedStep(result.step, batch.epoch, where, reason)


class LayerNorms(NamedTuple):
    """Norms at one step, by layer, of all ranks.

    A layer is a module with its direct parameters, such as "blocks.0.attention". A parameter of the
    model itself is a layer, too. In a step with several optimizers, the gradient of a
    parameter is the last that was clipped.

    Attributes:
        step: the step.
        grad_norm: of the gradient that `grad_norm` of the step measures: of the global batch, and
            before clipping. Layers without a gradient are left out.
        weight_norm: of the weights after the step.
        update_norm: of the weights after the step minus those before it. It includes the learning
            rate, weight decay and clipping, and is 0 if the step was skipped.
    """

    step: int
    grad_norm: dict[str, float]
    weight_norm: dict[str, float]
    update_norm: dict[str, float]


@dataclass(frozen=True)
class LogPoint:
    """Values of the steps since the last log point, on the host.

    Attributes:
        first_step: the first of these steps, from 1.
        epoch: the epoch of the last of them, from 0.
        loss: the loss of each step; None for a step without items.
        grad_norm: the norm of all gradients of each step before clipping; None likewise.
        lr: the learning rate of the first parameter group in each step.
        logged: what the Task logged, by name, for each step; None where it logged nothing.
        samples: samples of all ranks in these steps.
        items: items of all ranks that the losses are means over.
        seconds: the time that the steps took.
        data_wait_s: the part of it in which the loop waited for data.
        progress: the progress after the last step.
        progress_before: the progress before each step.
        skips: the steps that updated nothing, as far as the host knew.
        layers: with `logging.per_layer`, the norms of each layer at one of the steps; None if no
            step was measured.
    """

    first_step: int
    epoch: int
    loss: list[float | None]
    grad_norm: list[float | None]
    lr: list[float]
    logged: dict[str, list[float | None]]
    samples: int
    items: float
    seconds: float
    data_wait_s: float
    progress: Progress
    progress_before: list[Progress] = field(default_factory=list)
    skips: list[SkippedStep] = field(default_factory=list)
    layers: LayerNorms | None = None


def read_scalars(values: list[torch.Tensor | None]) -> list[float | None]:
    """Copy scalars from the device to the host at once."""
    there = [value for value in values if value is not None]
    if len({value.dtype for value in there}) > 1:
        there = [value.to(sum_dtype(value.device)) for value in there]
    host = iter(torch.stack(there).tolist() if there else [])
    return [None if value is None else next(host) for value in values]


def read_logged(
    results: list[StepResult], seconds: float, world: Communicator = ALONE, *, gone: bool = False
) -> tuple[LoggedSeries, float]:
    """Return what was logged by name, an entry for each step, and the time that all took.

    An entry is None if the step logged no such value; a mean is over the items that logged it. The
    time is that of rank 0, so that all ranks report one speed.

    Args:
        results: of the steps.
        seconds: that they took, by the clock of this rank.
        world: the ranks; each has logged its parts of the sums and means.
        gone: a rank may have left: the values of the others are not read.
    """
    flat = [(index, part) for index, result in enumerate(results) for part in result.logged]
    values = read_scalars([part.value for _, part in flat])
    own: _Tables = ({}, {})
    for (index, part), value in zip(flat, values, strict=True):
        row = own[part.items > 0].setdefault(part.name, [None] * len(results))
        _add(row, index, [value or 0.0, part.items])
    if world.size == 1 or gone:
        return {} if world.size > 1 else _finish(own), seconds
    gathered = [json.loads(text) for text in world.all_gather_text(json.dumps([own, seconds]))]
    summed: _Tables = ({}, {})
    for tables, _ in gathered:
        for table, into in zip(tables, summed, strict=True):
            for name, entries in table.items():
                row = into.setdefault(name, [None] * len(entries))
                for index, entry in enumerate(entries):
                    if entry is not None:
                        _add(row, index, entry)
    return _finish(summed), float(gathered[0][1])


_Row = list[list[float] | None]  # the value and its items of each step
_Tables = tuple[dict[str, _Row], dict[str, _Row]]  # sums and means, by name


def _add(row: _Row, index: int, entry: list[float]) -> None:
    """Add a value and its items to those of a step."""
    before = row[index]
    row[index] = entry if before is None else [a + b for a, b in zip(before, entry, strict=True)]


def _finish(tables: _Tables) -> LoggedSeries:
    """Return sums as they are, and means divided by their items.

    A mean that is called like a sum, which is a term of the loss, is `logged_NAME`.
    """
    sums, means = tables
    found: LoggedSeries = {
        name: [None if entry is None else entry[0] for entry in row] for name, row in sums.items()
    }
    for name, row in means.items():
        shown = f"logged_{name}" if name in sums else name
        found[shown] = [None if entry is None else entry[0] / entry[1] for entry in row]
    return found


def is_fatal(result: StepResult, loss: float | None, norm: float | None) -> bool:
    """Return whether a step fails the run, by its outcome and the values that were read."""
    finite = all(value is None or math.isfinite(value) for value in (loss, norm))
    return result.is_fatal or (result.outcome.nonfinite_flag is not None and not finite)


STATE_BEFORE = "The weights and the optimizer are those before this step."


def skip_hint(plan: Plan) -> str:
    """Return how to skip steps that are not finite, or more of them."""
    if plan.on_nonfinite == "skip":
        return (
            f"to skip more than {plan.max_nonfinite_steps} such steps, set a larger "
            "--max-nonfinite-steps (max_nonfinite_steps in Python)"
        )
    return "to skip such steps, set --on-nonfinite skip (on_nonfinite='skip' in Python)"


def nonfinite_error(result: StepResult, loss: float | None, plan: Plan) -> NonFiniteError:
    """Return the error that names a step, its loss and the parameters it would have corrupted."""
    names: list[str] = []
    if result.norms is not None:
        bad = (~torch.isfinite(result.norms.per_parameter)).tolist()
        names = [name for name, is_bad in zip(result.norms.names, bad, strict=True) if is_bad]
    return NonFiniteError(
        f"{describe_nonfinite_step(result, loss, names)} {STATE_BEFORE} "
        f"Check the batch in epoch {result.epoch + 1} at position "
        f"{result.progress_before.position}; lower optim.lr; or, {skip_hint(plan)}.",
        step=result.step,
        loss=float("nan") if loss is None else loss,
        parameters=names,
    )


def describe_nonfinite_step(result: StepResult, loss: float | None, names: list[str]) -> str:
    """Return which step was not finite, its loss and the parameters it would have corrupted."""
    if result.norms and not result.norms.names:  # ZeRO: ranks have shards of gradients
        norm = float(result.norms.total)
        return (
            f"Step {result.step} was not finite: its loss is {loss}, and the norm of its gradients "
            f"is {norm}."
        )
    where = f"{len(names)} of {len(result.norms.names)}" if result.norms else "no"
    shown = ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")
    return (
        f"Step {result.step} was not finite: its loss is {loss}, and {where} gradients are not "
        f"finite{': ' + shown if shown else ''}."
    )
