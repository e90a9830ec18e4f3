"""Targets of mixed samples: the loss of both targets, each by its share.

A blend of two targets loses which of them is ignored. A loss that gets both ignores each as it
always does: share x loss(outputs, first) + (1 - share) x loss(outputs, second).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from surestep.engine.losses.base import FirstBatch, Loss


class MixedTargets(NamedTuple):
    """The targets of samples that are blended, and the share of the first, (samples,) each."""

    first: Any
    second: Any
    share: Tensor


def accept_mixed(loss: Loss) -> Loss:
    """Return a loss for MixedTargets too, if it is one of torch's or of surestep's, as sums."""
    if loss.components:
        parts = (replace(part, loss=accept_mixed(part.loss)) for part in loss.components)
        return replace(loss, components=tuple(parts))
    if not loss.is_sum or loss.kind not in ("classes", "known"):
        return loss

    def mixed(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def value(outputs: Any, targets: Any) -> Any:
            pair = _as_pair(targets)
            if pair is None:
                return function(outputs, targets)
            first, second = function(outputs, pair.first), function(outputs, pair.second)
            if isinstance(first, Mapping):
                return {name: _mix(first[name], second[name], pair.share) for name in first}
            return _mix(first, second, pair.share)

        return value

    def items(batch: Any, targets: Any) -> float:
        pair = _as_pair(targets)
        if pair is None:
            return loss.items(batch, targets)
        share = float(pair.share[0])
        return share * loss.items(batch, pair.first) + (1 - share) * loss.items(batch, pair.second)

    def check(first: FirstBatch) -> None:
        pair = _as_pair(first.targets)
        for targets in (first.targets,) if pair is None else pair[:2]:
            if loss.check is not None:
                loss.check(first._replace(targets=targets))

    return replace(
        loss,
        value=mixed(loss.value),
        items=items,
        check=None if loss.check is None else check,
        in_fp32=None if loss.in_fp32 is None else mixed(loss.in_fp32),
    )


def _as_pair(targets: Any) -> MixedTargets | None:
    """Return mixed targets, each with the outputs of a teacher if they have some."""
    if isinstance(targets, MixedTargets):
        return targets
    if type(targets) is tuple and targets and isinstance(targets[0], MixedTargets):
        (first, second, share), *more = targets
        return MixedTargets((first, *more), (second, *more), share)
    return None


def _mix(first: Tensor, second: Tensor, shares: Tensor) -> Tensor:
    share = shares[0].to(first.dtype)
    return share * first + (1 - share) * second
