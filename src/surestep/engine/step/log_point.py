"""What the host reads of the steps since the last log point."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from surestep.base.errors import NonFiniteError
from surestep.engine.batch import Batch
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.state.state import Progress
from surestep.engine.step.train_step import StepResult

Reason = Literal["overflow", "nonfinite", "no_items", "spike"]
Logged = dict[str, list[float | None]]  # by name, an entry for each step
SKIP = "--on-nonfinite skip (on_nonfinite='skip' in Python)"  # what to type to go on over them


class SkippedStep(NamedTuple):
    """A step that moved nothing, where in the data its batch was, and why.

    `positions` are the first of its epoch and the end; None where the batch was the user's own.
    `guilty` are the positions of the samples that did it; None where that is not known.
    """

    step: int
    epoch: int
    positions: tuple[int, int] | None
    reason: Reason
    guilty: tuple[int, ...] | None = None


def skipped_step(result: StepResult, batch: Batch) -> SkippedStep:
    """Return what there is to say about a step that moved nothing."""
    outcome, first = result.outcome, result.progress_before.position
    placed = batch.position == first and batch.end > first
    where = (first, batch.end) if placed else None
    reason: Reason = "spike" if batch.after_spike else "no_items"
    if outcome.overflow or outcome.nonfinite:
        reason = "overflow" if outcome.overflow else "nonfinite"
    return SkippedStep(result.step, batch.epoch, where, reason)


@dataclass(frozen=True)
class LogPoint:
    """What the host read: a list entry for each step since the last log point.

    `loss` and `grad_norm` are None for a step without items. `data_wait_s` are the seconds of
    `seconds` in which the next batch was waited for; `places` are those
    before each step; `skips` are the steps that moved nothing, as
    far as the host knew.
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


def read_scalars(values: list[torch.Tensor | None]) -> list[float | None]:
    """Copy scalars from the device to the host at once."""
    there = [value for value in values if value is not None]
    if len({value.dtype for value in there}) > 1:
        there = [value.double() for value in there]
    host = iter(torch.stack(there).tolist() if there else [])
    return [None if value is None else next(host) for value in values]


def read_logged(
    results: list[StepResult], seconds: float, world: Communicator = ALONE, *, gone: bool = False
) -> tuple[Logged, float]:
    """Return what was logged by name, an entry for each step, and the time that all took.

    None is for a step that logged none. The time is the first rank's, so that all tell one speed.

    Args:
        results: of the steps.
        seconds: that they took, by the clock of this rank.
        world: the ranks, of which each has logged its share of the means.
        gone: some may not be there any more; nothing is known then.
    """
    flat = [(i, name, value) for i, result in enumerate(results) for name, value in result.logged]
    values = read_scalars([value for _, _, value in flat])
    table: Logged = {}
    for (index, name, _), value in zip(flat, values, strict=True):
        row = table.setdefault(name, [None] * len(results))
        row[index] = (row[index] or 0.0) + (value or 0.0)
    if world.size == 1 or gone:
        return table if world.size == 1 else {}, seconds
    return _of_all_ranks(world, table, seconds)


def _of_all_ranks(world: Communicator, table: Logged, seconds: float) -> tuple[Logged, float]:
    told = [json.loads(text) for text in world.all_gather_text(json.dumps([table, seconds]))]
    tables = [each for each, _ in told]
    names = dict.fromkeys(name for each in tables for name in each)
    summed = {
        name: [_sum(entries) for entries in zip(*rows, strict=True)]
        for name in names
        if (rows := [each[name] for each in tables if name in each])
    }
    return summed, float(told[0][1])


def _sum(entries: Iterable[float | None]) -> float | None:
    there = [each for each in entries if each is not None]
    return sum(there) if there else None


def is_fatal(result: StepResult, loss: float | None, norm: float | None) -> bool:
    """Say whether a step fails the run; what the host did not know is known from the numbers."""
    finite = all(value is None or math.isfinite(value) for value in (loss, norm))
    return result.is_fatal or (result.outcome.nonfinite_flag is not None and not finite)


def nonfinite_error(result: StepResult, loss: float | None) -> NonFiniteError:
    """Return the error that names a step, its loss and the parameters it would have spoilt."""
    names: list[str] = []
    if result.norms is not None:
        bad = (~torch.isfinite(result.norms.per_parameter)).tolist()
        names = [name for name, is_bad in zip(result.norms.names, bad, strict=True) if is_bad]
    return NonFiniteError(
        f"{describe_nonfinite_step(result, loss, names)} The state is the one before that step. "
        "Look at "
        f"the batch in epoch {result.epoch + 1} at position {result.progress_before.position}; "
        "lower "
        f"optim.lr; or go on over such steps with {SKIP}.",
        step=result.step,
        loss=float("nan") if loss is None else loss,
        parameters=names,
    )


def describe_nonfinite_step(result: StepResult, loss: float | None, names: list[str]) -> str:
    """Say which step was not finite, with its loss and the parameters it would have spoilt."""
    if result.norms and not result.norms.names:  # ZeRO: ranks have pieces of gradients
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
