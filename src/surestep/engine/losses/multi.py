"""Several losses of one model, each a mean over its own items: pixels here, samples there.

The total is the sum of weight x (sum over its items / its items in the global batch). A loss that
has no items in a batch adds nothing to it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from surestep.base.errors import DataError, NoTargetsError, TaskError, suggest_names
from surestep.engine.batch import (
    MicroBatch,
    batch_size_of,
    count_samples_in,
    explain_targets,
    flatten_tensors,
    samples_of_ready,
    zero_loss,
)
from surestep.engine.losses.base import Loss, WeightedLoss, never_called
from surestep.engine.step_outcome import Logged


class LossHead(NamedTuple):
    """A loss with its outputs, targets and items; the name of an only loss is ""."""

    name: str
    loss: Loss
    outputs: Any
    micro_batch: MicroBatch


def combine_losses(parts: Sequence[WeightedLoss]) -> Loss:
    """Return several losses as one, whose value is `weighted_sum`."""
    labels = [
        f"{part.name}: {part.loss.label}"
        if part.weight == 1
        else f"{part.weight:g} x {part.name}: {part.loss.label}"
        for part in parts
    ]
    modules = [part.loss.module for part in parts if part.loss.module is not None]
    return Loss(
        never_called,
        is_sum=True,
        items=lambda batch, targets: sum(_items(parts, batch, targets, batch_size_of(targets))),
        count=batch_size_of,
        counts_samples=True,
        kind="several",
        divides=False,
        label=" + ".join(labels),
        divides_by="; ".join(f"{part.name}: {part.loss.divides_by}" for part in parts),
        module=nn.ModuleList(modules),
        is_separable=all(part.loss.is_separable for part in parts),
        components=tuple(parts),
    )


def _items(
    parts: Sequence[WeightedLoss], batch: Any, targets: Any, samples: int
) -> tuple[float, ...]:
    return tuple(
        part.loss.count_items(batch, get_named(targets, part.name, "targets"), samples)
        for part in parts
    )


def named_losses(loss: Loss) -> list[tuple[str, Loss]]:
    """Return each of several losses with its name; the name of a single loss is ""."""
    return [(part.name, part.loss) for part in loss.components] or [("", loss)]


def code_of_losses(loss: Loss) -> dict[str, Any]:
    """Return the module or function of each loss by its name, such as "loss['a']" or "loss"."""
    return {
        f"loss[{name!r}]" if name else "loss": part.value if part.module is None else part.module
        for name, part in named_losses(loss)
    }


def with_items(micro_batch: MicroBatch, loss: Loss, raw: Any) -> MicroBatch:
    """Return the micro-batch with its items, counted from the batch as it was read.

    Raises:
        TaskError: they are samples, and how many a ready batch holds is not known.
    """
    counts_samples = any(part.counts_samples for _, part in named_losses(loss))
    if counts_samples or not micro_batch.is_ready:
        samples = count_samples_in(micro_batch, raw)
        micro_batch = micro_batch._replace(collated=samples)
    else:
        samples = micro_batch.samples
        micro_batch = micro_batch._replace(collated=samples_of_ready(micro_batch))
    if not loss.components:
        return micro_batch._replace(items=loss.count_items(raw, micro_batch.targets, samples))
    part_items = _items(loss.components, raw, micro_batch.targets, samples)
    return micro_batch._replace(items=sum(part_items), part_items=part_items)


def split_heads(loss: Loss, outputs: Any, micro_batch: MicroBatch) -> list[LossHead]:
    """Return the outputs and targets of each loss that has items in a micro-batch."""
    if not loss.components:
        return [LossHead("", loss, outputs, micro_batch)]
    heads = []
    for part, items in zip(loss.components, micro_batch.part_items, strict=True):
        if items:
            targets = get_named(micro_batch.targets, part.name, "targets")
            own = micro_batch._replace(targets=targets, items=items, part_items=())
            part_outputs = get_named(outputs, part.name, "outputs")
            heads.append(LossHead(part.name, part.loss, part_outputs, own))
    return heads


def weighted_sum(
    loss: Loss,
    outputs: Any,
    micro_batch: MicroBatch,
    items: tuple[float, ...],
    *,
    reach_all: bool = False,
) -> tuple[Tensor, list[Logged]]:
    """Return what a micro-batch adds to the weighted sum of several losses, and to each.

    `items` are those of each loss in the global batch. With `reach_all`, a loss without items here
    gets gradients of 0, for which other ranks wait.
    """
    total: Tensor | None = None
    logged: list[Logged] = []
    for part, own, full in zip(loss.components, micro_batch.part_items, items, strict=True):
        if not own:
            reached = get_named(outputs, part.name, "outputs") if reach_all else None
            if any(tensor.requires_grad for tensor in flatten_tensors(reached)):
                nothing = zero_loss(reached)
                total = nothing if total is None else total + nothing
            continue
        divisor = full if part.loss.divides else 1.0
        value, named = part.loss.total(
            get_named(outputs, part.name, "outputs"),
            get_named(micro_batch.targets, part.name, "targets"),
            own,
        )
        mean = value / divisor
        logged.append(Logged(f"loss_{part.name}", mean.detach()))
        logged += [
            Logged(f"{part.name}_{key}", term.detach() / divisor) for key, term in named.items()
        ]
        total = part.weight * mean if total is None else total + part.weight * mean
    assert total is not None
    return total, logged


def check_several(
    losses: Mapping[str, Any],
    items: Any,
    weights: Mapping[str, float],
    teacher: object,
    reduction: Any,
) -> None:
    """Check the arguments of a Task with several losses."""
    if not losses:
        raise TaskError("loss is an empty dict. Give a loss for each output, by its name.")
    for name, loss in losses.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise TaskError(f"A loss cannot be called {name!r}. Choose another name.")
        if loss == "model" or not (callable(loss) or isinstance(loss, str)):
            shown = repr(loss) if isinstance(loss, str) else f"a {type(loss).__name__}"
            raise TaskError(
                f"loss[{name!r}] is {shown}. Each of several losses is one of surestep.losses, of "
                "torch, or a function of (outputs, targets)."
            )
    if teacher is not None:
        raise TaskError(
            "A teacher goes with one loss, and the Task has several. Let the model return the "
            "teacher's outputs, or give them as targets: losses.distillation() takes them."
        )
    usual = {"items": (items, "samples"), "reduction": (reduction, "mean")}
    for option, (value, default) in {**usual, "loss_weights": (weights, None)}.items():
        for name in value if isinstance(value, Mapping) else ():
            if name not in losses:
                raise TaskError(
                    f"{option} names no loss {name!r}. {suggest_names(str(name), losses)}"
                )
        if not isinstance(value, Mapping) and value != default:
            shown = repr(value) if isinstance(value, str) else "a function"
            raise TaskError(
                f"{option}={shown} does not name one of {len(losses)} losses. Use "
                f"{option}={{{next(iter(losses))!r}: {shown}}}."
            )
    for name, weight in weights.items():
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < math.inf:
            raise TaskError(
                f"loss_weights[{name!r}] is {weight!r}. Use a finite number of 0 or more, such as "
                "0.5."
            )
    if all(weights.get(name, 1.0) == 0 for name in losses):
        raise TaskError("All loss_weights are 0, so nothing would be learned. Leave one out.")


def get_named(value: Any, name: str, what: str) -> Any:
    """Return the outputs or targets of a name: from a mapping, or an attribute."""
    is_plain_tuple = isinstance(value, tuple) and not hasattr(value, "_fields")
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        known = list(map(str, value))
    elif value is None and what == "targets":
        raise NoTargetsError(explain_targets(value, f"loss[{name!r}]"))
    elif is_plain_tuple or isinstance(value, (Tensor, list, str, int, float, type(None))):
        give = "let the model return" if what == "outputs" else "give"
        raise TaskError(
            f"loss[{name!r}] takes the {what} that are called {name!r}, and the {what} are a "
            f"{type(value).__name__}. Of several losses, {give} a dict: {{{name!r}: ...}}."
        )
    else:
        if hasattr(value, name):
            return getattr(value, name)
        known = [*getattr(value, "_fields", getattr(value, "__dict__", {}))]
    raise TaskError(
        f"loss[{name!r}] takes the {what} that are called {name!r}, and there are none. "
        f"{suggest_names(name, known)}"
    )


@contextmanager
def error_prefix(name: str) -> Iterator[None]:
    """Put the name of one of several losses before its error messages."""
    try:
        yield
    except (TaskError, DataError) as error:
        if not name:
            raise
        raise type(error)(f"loss[{name!r}]: {error}") from error
