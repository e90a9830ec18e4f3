"""The value of the loss: one number, no broadcast within, a mean over its items."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from surestep.base.errors import TaskError
from surestep.engine.data.batch import MicroBatch, samples_in, tensors_in
from surestep.engine.device import sum_dtype
from surestep.engine.loss import Loss
from surestep.engine.losses.several import Head


class _Broadcast(TorchDispatchMode):
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


def loss_of(loss: Loss, outputs: Any, targets: Any, micro: MicroBatch) -> Tensor:
    """Return the loss of a micro-batch, checked, as a sum over its items."""
    samples = samples_in((micro.targets, micro.args, dict(micro.kwargs)))
    with _Broadcast(samples) as broadcast, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            value = loss.value(outputs, targets)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = [tuple(each.shape) for each in tensors_in((outputs, targets))]
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
    if loss.is_sum and isinstance(value, Tensor):
        return value
    return loss.add_up(value, micro.items)[0]


def check_parts(head: Head, raw: Any, whole: Tensor, targets_of: Callable[[Any], Any]) -> None:
    """Compare a batch with its two parts: a loss that is a mean over its items adds up.

    Args:
        head: the loss and what it looks at.
        raw: the batch, as it was read.
        whole: its loss, summed over its items.
        targets_of: what takes the targets of this loss out of a batch.
    """
    loss, outputs, micro, samples = head.loss, head.outputs, head.micro, head.micro.samples
    if samples < 3 or not isinstance(outputs, Tensor) or len(outputs) != samples:
        return
    total = torch.zeros((), dtype=sum_dtype(whole.device), device=whole.device)
    # Uneven parts, because a mean of means is right for even ones.
    for rows in (slice(0, samples // 3), slice(samples // 3, samples)):
        part = _rows(raw, rows)
        if part is raw:  # an object of the user's own, which cannot be cut here
            return
        items = loss.items(part, targets_of(part))
        targets = _rows(micro.targets, rows)
        if items:
            total += loss.add_up(loss.value(outputs[rows], targets), items)[0]
    half = isinstance(outputs, Tensor) and outputs.dtype in (torch.bfloat16, torch.float16)
    if not math.isclose(float(total), float(whole), rel_tol=3e-2 if half else 1e-4, abs_tol=1e-6):
        raise TaskError(
            f"The loss is not a mean over its items: {samples} samples give "
            f"{float(whole) / micro.items:.6g}, and their two parts put together "
            f"{float(total) / micro.items:.6g}. Say what it is a mean over, Task(items='tokens') "
            "or a function of the batch; or Task(splits=False) where it compares samples."
        )


def _rows(value: Any, rows: slice) -> Any:
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, Mapping):
        return {key: _rows(each, rows) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_rows(each, rows) for each in value)
    return value


def check_first_loss(loss: float, classes: int, name: str = "") -> None:
    """Warn of a first loss far above log(classes), where guessing evenly would start."""
    expected = math.log(classes)
    called = f"The first loss {name!r}" if name else "The first loss"
    if loss > 2 * expected + 0.5:
        warnings.warn(
            f"{called} is {loss:.3g}, and guessing evenly among {classes} classes would give "
            f"{expected:.3g}. Look at the scale of the inputs and the last layer's first weights.",
            stacklevel=2,
        )
