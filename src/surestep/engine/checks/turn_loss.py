"""The loss that a step of the user's own goes backward from."""

from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.parallel.single import NO_GRADIENT


def check_turn_loss(loss: object) -> None:
    """Check that it is one number, which depends on something that is trained.

    Raises:
        TaskError: it is not, or does not.
    """
    if not isinstance(loss, Tensor) or loss.dim():
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise TaskError(
            f"turn.backward takes a loss of one number, and got {what}. Give its mean over the "
            "micro-batch: loss.mean()."
        )
    if not loss.requires_grad:
        raise TaskError(NO_GRADIENT)
