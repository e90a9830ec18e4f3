"""Several losses of one model, each a mean over what is its own: pixels here, samples there.

The total is the sum of weight x (sum over its items / its items in the global batch). A loss that
has no items in a batch adds nothing to it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from surestep.base.errors import DataError, TaskError, suggest_names
from surestep.engine.batch import MicroBatch, batch_size_of, flatten_tensors, zero_loss
from surestep.engine.losses.base import Loss, WeightedLoss


class LossHead(NamedTuple):
    """What one loss looks at: the only one, called "", or one of several.

    Attributes:
        name: its name.
        loss: the loss.
        outputs: of the model, for this loss.
        micro: the micro-batch with the targets and items of this loss.
    """

    name: str
    loss: Loss
    outputs: Any
    micro: MicroBatch


def combine_losses(parts: Sequence[WeightedLoss]) -> Loss:
    """Return the weighted sum of several losses as one; `weighted` is its value."""
    modules = [part.loss.module for part in parts if part.loss.module is not None]
    return Loss(
        _not_there,
        is_sum=True,
        items=lambda batch, targets: sum(_items(parts, batch, targets)),
        count=batch_size_of,
        kind="several",
        divides=False,
        label=" + ".join(map(_called, parts)),
        divides_by="; ".join(f"{part.name}: {part.loss.divides_by}" for part in parts),
        module=nn.ModuleList(modules),
        is_separable=all(part.loss.is_separable for part in parts),
        components=tuple(parts),
    )


def _not_there(outputs: Any, targets: Any) -> Tensor:
    raise AssertionError("each of several losses is asked for itself")


def _called(part: WeightedLoss) -> str:
    called = f"{part.name}: {part.loss.label}"
    return called if part.weight == 1 else f"{part.weight:g} x {called}"


def _items(parts: Sequence[WeightedLoss], batch: Any, targets: Any) -> tuple[float, ...]:
    return tuple(part.loss.items(batch, get_named(targets, part.name, "targets")) for part in parts)


def named_losses(loss: Loss) -> list[tuple[str, Loss]]:
    """Return each of several losses with its name; one loss alone is called ""."""
    return [(part.name, part.loss) for part in loss.components] or [("", loss)]


def code_of_losses(loss: Loss) -> dict[str, Any]:
    """Return the module or function of each loss by its name, such as "loss['a']" or "loss"."""
    return {
        f"loss[{name!r}]" if name else "loss": each.value if each.module is None else each.module
        for name, each in named_losses(loss)
    }


def with_items(micro: MicroBatch, loss: Loss, raw: Any) -> MicroBatch:
    """Return the micro-batch with its items, counted from the batch as it was read."""
    if not loss.components:
        return micro._replace(items=loss.items(raw, micro.targets))
    each = _items(loss.components, raw, micro.targets)
    return micro._replace(items=sum(each), part_items=each)


def split_heads(loss: Loss, outputs: Any, micro: MicroBatch) -> list[LossHead]:
    """Return what each loss that has items in a micro-batch looks at."""
    if not loss.components:
        return [LossHead("", loss, outputs, micro)]
    found = []
    for part, items in zip(loss.components, micro.part_items, strict=True):
        if items:
            targets = get_named(micro.targets, part.name, "targets")
            own = micro._replace(targets=targets, items=items, part_items=())
            found.append(
                LossHead(part.name, part.loss, get_named(outputs, part.name, "outputs"), own)
            )
    return found


def weighted_sum(
    loss: Loss,
    outputs: Any,
    micro: MicroBatch,
    items: tuple[float, ...],
    *,
    reach_all: bool = False,
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Return what a micro-batch adds to the weighted sum of several losses, and to each.

    Args:
        loss: several.
        outputs: of the model.
        micro: has items of one at least.
        items: of each in the global batch.
        reach_all: a loss without items here gives gradients of 0, for which other ranks wait.
    """
    total: Tensor | None = None
    logged: list[tuple[str, Tensor]] = []
    for part, own, whole in zip(loss.components, micro.part_items, items, strict=True):
        if not own:
            reached = get_named(outputs, part.name, "outputs") if reach_all else None
            if any(each.requires_grad for each in flatten_tensors(reached)):
                nothing = zero_loss(reached)
                total = nothing if total is None else total + nothing
            continue
        given = (
            get_named(outputs, part.name, "outputs"),
            get_named(micro.targets, part.name, "targets"),
        )
        divisor = whole if part.loss.divides else 1.0
        value, named = part.loss.total(*given, own)
        mean = value / divisor
        logged.append((f"loss_{part.name}", mean.detach()))
        logged += [(f"{part.name}_{name}", each.detach() / divisor) for name, each in named.items()]
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
    """Check what a Task says of several losses, before anything is built.

    Raises:
        TaskError: names, weights or items that do not fit, or what stands for one loss only.
    """
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
            "A teacher goes with one loss, and the Task has several. Let the model return what "
            "the teacher says, or give its outputs as targets: losses.distillation() takes them."
        )
    _check_names(losses, "items", items, "samples")
    _check_names(losses, "reduction", reduction, "mean")
    _check_weights(losses, weights)


def _check_names(losses: Mapping[str, Any], option: str, value: Any, default: str) -> None:
    """Check an option that several losses have each for itself."""
    if isinstance(value, Mapping):
        for name in value:
            if name not in losses:
                raise TaskError(
                    f"{option} names no loss {name!r}. {suggest_names(str(name), losses)}"
                )
    elif value != default:
        said = repr(value) if isinstance(value, str) else "a function"
        raise TaskError(
            f"{option}={said} is said of {len(losses)} losses. Say which: "
            f"{option}={{{next(iter(losses))!r}: {said}}}."
        )


def _check_weights(losses: Mapping[str, Any], weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        if name not in losses:
            raise TaskError(
                f"loss_weights names no loss {name!r}. {suggest_names(str(name), losses)}"
            )
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < math.inf:
            raise TaskError(
                f"loss_weights[{name!r}] is {weight!r}. Say a finite number of 0 or more, such as "
                "0.5."
            )
    if all(weights.get(name, 1.0) == 0 for name in losses):
        raise TaskError("All loss_weights are 0, so nothing would be learned. Leave one out.")


def get_named(value: Any, name: str, what: str) -> Any:
    """Return what is called `name` in outputs or targets: of a mapping, or an attribute.

    Raises:
        TaskError: there is no such thing.
    """
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        known = list(map(str, value))
    elif _has_names(value):
        if hasattr(value, name):
            return getattr(value, name)
        known = [*getattr(value, "_fields", getattr(value, "__dict__", {}))]
    else:
        where = "let the model return" if what == "outputs" else "give"
        raise TaskError(
            f"loss[{name!r}] takes the {what} that are called {name!r}, and the {what} are a "
            f"{type(value).__name__}. Of several losses, {where} a dict: {{{name!r}: ...}}."
        )
    raise TaskError(
        f"loss[{name!r}] takes the {what} that are called {name!r}, and there are none. "
        f"{suggest_names(name, known)}"
    )


def _has_names(value: Any) -> bool:
    """Tell an object with attributes, or a named tuple, from a tensor or plain values."""
    plain = (Tensor, list, str, int, float, type(None))
    unnamed_tuple = isinstance(value, tuple) and not hasattr(value, "_fields")
    return not isinstance(value, plain) and not unnamed_tuple


@contextmanager
def error_prefix(name: str) -> Iterator[None]:
    """Put the name of one of several losses in front of what is wrong with it."""
    try:
        yield
    except (TaskError, DataError) as error:
        if not name:
            raise
        raise type(error)(f"loss[{name!r}]: {error}") from error
