"""Whether outputs, targets and loss fit each other."""

from typing import Any

from surestep.engine.batch import MicroBatch, flatten_tensors
from surestep.engine.checks.activation import OutputActivationTracker
from surestep.engine.losses.base import FirstBatch, Loss


def check_shapes(
    loss: Loss, outputs: Any, targets: Any, micro: MicroBatch, watch: OutputActivationTracker
) -> None:
    """Let the loss look at the shapes, types and ranges of outputs and targets.

    Raises:
        TaskError, DataError: they are not what the loss takes.
    """
    if loss.check is not None:
        inputs = tuple(flatten_tensors((micro.args, dict(micro.kwargs))))
        loss.check(FirstBatch(outputs, targets, inputs, watch.activation_of(outputs)))
