"""The bytes that a rank really holds, to compare with what the formula says."""

from collections.abc import Iterable

from torch import Tensor
from torch.distributed.tensor import DTensor

from surestep.trainer.session import Session


def held_bytes(session: Session) -> dict[str, int]:
    """Return what this rank holds of weights, gradients and the optimizer's state."""
    loop = session.loop
    loop.step(loop.feed.move(next(loop.feed.batches(0))))  # leaves its gradients
    parameters = list(session.model.parameters())
    slots = [value for slots in session.optimizer.state.values() for value in slots.values()]
    return {
        "weights": _size(parameters),
        "gradients": _size(each.grad for each in parameters if each.grad is not None),
        "optimizer": _size(each for each in slots if isinstance(each, Tensor)),
    }


def _size(tensors: Iterable[Tensor]) -> int:
    own = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    return sum(each.numel() * each.element_size() for each in own)
