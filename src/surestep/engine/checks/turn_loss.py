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


def check_walked(name: str, seen: int | None, wanted: int) -> None:
    """Check that an optimizer has the gradients of a whole batch.

    Args:
        name: of the optimizer.
        seen: micro-batches that it has gradients of; None where nobody walked over them.
        wanted: how many there are.

    Raises:
        TaskError: it has not.
    """
    if seen is None:
        raise TaskError(
            f"There are no gradients of {name!r} to step by. Walk over "
            f"turn.micro_batches({name!r}) and call turn.backward(loss, micro) for each."
        )
    if seen < wanted:
        raise TaskError(
            f"{name!r} has gradients of {seen} of the {wanted} micro-batches of this batch. "
            "Walk over all of turn.micro_batches(...), with a turn.backward for each."
        )
