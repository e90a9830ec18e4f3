"""Measure the bytes that a rank holds, to compare with the formula."""

from collections.abc import Iterable

from torch import Tensor
from torch.distributed.tensor import DTensor

from surestep.trainer.session import Session


def held_bytes(session: Session) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimizer state on this rank."""
    loop = session.loop
    loop.step(loop.loader.move(next(loop.loader.batches(0))))  # preserves its gradients
    parameters = list(session.model.parameters())
    parts = [each.ds_tensor for each in parameters if hasattr(each, "ds_tensor")]  # of ZeRO 3
    state = session.optimizer.state
    slots = [value for slots in state.values() for value in slots.values()]
    known = set(map(id, parameters))
    slots += [each for each in state if id(each) not in known]  # fp32 weights of DeepSpeed's
    return {
        "weights": _size(parameters) + _size(parts),
        "gradients": _size(each.grad for each in parameters if each.grad is not None),
        "optimizer": _size(each for each in slots if isinstance(each, Tensor)),
    }


def _size(tensors: Iterable[Tensor]) -> int:
    own = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    return sum(each.numel() * each.element_size() for each in own)
