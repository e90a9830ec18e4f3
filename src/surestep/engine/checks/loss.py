"""The loss of the first batch: its inputs, its value, and the last activation of the model."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.batch import MicroBatch, batch_size_of, describe_shapes, explain_targets
from surestep.engine.device import ran_out
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.base import Squash
from surestep.engine.model.compile import DispatchMode
from surestep.engine.modes import needs_gradient_hint

_SQUASHES: dict[str, Squash] = {"sigmoid": "sigmoid", "_softmax": "softmax"}
_PASS_ON = ("clamp", "_to_copy", "clone", "contiguous")


class OutputActivationTracker(DispatchMode):
    """Remembers of each memory address whether a softmax or sigmoid wrote it last.

    Views and results in place share the memory. A later write to freed memory replaces the entry.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, Squash | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not func.is_view:
            name = func.overloadpacket.__name__.removesuffix("_")
            squash = _SQUASHES.get(name)
            if name in _PASS_ON and args and isinstance(args[0], Tensor):
                squash = self.activation_of(args[0])
            self._last[_address(result)] = squash
        return result

    def activation_of(self, outputs: Any) -> Squash | None:
        """Return the activation that made these outputs."""
        return self._last.get(_address(outputs)) if isinstance(outputs, Tensor) else None


def _address(tensor: Tensor) -> int:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


class _BroadcastDetector(DispatchMode):
    """Detects an operation of (N, 1) with (N,), which makes N x N of it."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(arg.shape) for arg in args if isinstance(arg, Tensor)]
        if self.samples > 1 and {(self.samples, 1), (self.samples,)} <= {*shapes}:
            self.found = True
        return func(*args, **(kwargs or {}))


def compute_checked_loss(loss: Loss, outputs: Any, targets: Any, micro: MicroBatch) -> Tensor:
    """Return the loss of a micro-batch, summed over its items.

    Raises:
        TaskError: it fails, broadcasts outputs against targets, or is not a number.
    """
    samples = micro.samples
    if not loss.is_in_training_only:  # whose batches are lists
        samples = batch_size_of((micro.targets, micro.args, dict(micro.kwargs)))
    with _BroadcastDetector(samples) as broadcast, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            value = loss.value(outputs, targets)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            if ran_out(error):
                raise
            is_of_type = isinstance(error, (TypeError, AttributeError))
            of_targets = explain_targets(targets, "the loss") if is_of_type else ""
            if isinstance(error, AttributeError) and not of_targets:
                raise
            hint = needs_gradient_hint(error) or of_targets
            raise TaskError(
                f"The loss fails on the first batch, whose outputs and targets have shapes "
                f"{describe_shapes((outputs, targets))}: {error}" + (f". {hint}" if hint else "")
            ) from error
    # torch's own losses broadcast where a dispatch mode does not see it, but warn.
    if broadcast.found or any("Using a target size" in str(entry.message) for entry in warned):
        raise TaskError(
            f"The loss combines a tensor of shape ({samples}, 1) with one of shape ({samples},), "
            f"which torch broadcasts to ({samples}, {samples}). Use outputs.squeeze(-1) or "
            "targets.unsqueeze(-1)."
        )
    for name, part in value.items() if isinstance(value, Mapping) else [("", value)]:
        called = f"The loss part {name!r}" if name else "The loss"
        if not isinstance(part, Tensor):
            raise TaskError(
                f"{called} is a {type(part).__name__}. Return a tensor that is not detached."
            )
        if part.dim() != 0:
            raise TaskError(
                f"{called} has shape {tuple(part.shape)}, and a step needs one number. Return its "
                "mean: loss.mean()."
            )
    return loss.to_sum(loss.widen(value, outputs, targets), micro.items)[0]


def check_first_loss(loss: float, classes: int, name: str = "") -> None:
    """Warn if the first loss is far above log(classes), the loss of even guesses."""
    expected = math.log(classes)
    called = f"The first loss {name!r}" if name else "The first loss"
    if loss > 2 * expected + 0.5:
        warn(
            f"{called} is {loss:.3g}, but equal probabilities for {classes} classes would give "
            f"{expected:.3g}. Check the scale of the inputs and the initial weights of the last "
            "layer.",
        )
