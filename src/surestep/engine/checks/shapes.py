"""Whether outputs, targets and loss fit each other."""

from typing import Any

from surestep.engine.checks.squash import Watch
from surestep.engine.data.batch import MicroBatch, tensors_in
from surestep.engine.losses.base import First, Loss


def check_shapes(loss: Loss, outputs: Any, targets: Any, micro: MicroBatch, watch: Watch) -> None:
    """Let the loss look at the shapes, types and ranges of outputs and targets.

    Raises:
        TaskError, DataError: they are not what the loss takes.
    """
    if loss.check is not None:
        inputs = tuple(tensors_in((micro.args, dict(micro.kwargs))))
        loss.check(First(outputs, targets, inputs, watch.of(outputs)))
