"""The value of the loss: one number, no broadcast within, a mean over its items."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.batch import MicroBatch, batch_size_of, flatten_tensors
from surestep.engine.dispatch import DispatchMode
from surestep.engine.losses.adapt import Loss


class _BroadcastDetector(DispatchMode):
    """Notice an operation of (N, 1) with (N,), which makes N x N of it."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.seen: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(each.shape) for each in args if isinstance(each, Tensor)]
        column, row = (self.samples, 1), (self.samples,)
        if self.samples > 1 and column in shapes and row in shapes:
            self.seen = str(func)
        return func(*args, **(kwargs or {}))


def checked_loss(loss: Loss, outputs: Any, targets: Any, micro: MicroBatch) -> Tensor:
    """Return the loss of a micro-batch, checked, as a sum over its items."""
    samples = micro.samples
    if not loss.is_in_training_only:  # whose batches are lists
        samples = batch_size_of((micro.targets, micro.args, dict(micro.kwargs)))
    with _BroadcastDetector(samples) as broadcast, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            value = loss.value(outputs, targets)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = [tuple(each.shape) for each in flatten_tensors((outputs, targets))]
            raise TaskError(
                f"The loss fails on the first batch, whose outputs and targets have shapes "
                f"{shapes}: {error}"
            ) from error
    # torch's own losses broadcast out of a dispatch mode's sight, but warn.
    of_torch = any("Using a target size" in str(each.message) for each in warned)
    if broadcast.seen is not None or of_torch:
        raise TaskError(
            f"In the loss, a tensor of shape ({samples}, 1) meets one of shape ({samples},): each "
            "is compared with each. Use outputs.squeeze(-1) or targets.unsqueeze(-1)."
        )
    for name, part in value.items() if isinstance(value, Mapping) else [("", value)]:
        called = f"The loss part {name!r}" if name else "The loss"
        if not isinstance(part, Tensor):
            raise TaskError(f"{called} is a {type(part).__name__}. Return a tensor, undetached.")
        if part.dim() != 0:
            raise TaskError(
                f"{called} has shape {tuple(part.shape)}, and a step needs one number. Return its "
                "mean: loss.mean()."
            )
    return loss.to_sum(loss.widened(value, outputs, targets), micro.items)[0]


def check_first_loss(loss: float, classes: int, name: str = "") -> None:
    """Warn of a first loss far above log(classes), where guessing evenly would start."""
    expected = math.log(classes)
    called = f"The first loss {name!r}" if name else "The first loss"
    if loss > 2 * expected + 0.5:
        warn(
            f"{called} is {loss:.3g}, and guessing evenly among {classes} classes would give "
            f"{expected:.3g}. Look at the scale of the inputs and the last layer's first weights.",
        )
