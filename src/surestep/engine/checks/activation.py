"""Which operation a model's outputs came out of: softmax or sigmoid belong into the loss."""

from typing import Any

import torch
from torch import Tensor

from surestep.engine.dispatch import DispatchMode
from surestep.engine.losses.base import Squash

_SQUASHES: dict[str, Squash] = {"sigmoid": "sigmoid", "_softmax": "softmax"}
_HAND_ON = ("clamp", "_to_copy", "clone", "contiguous")


class OutputActivationTracker(DispatchMode):
    """Remember, of each memory, whether a softmax or sigmoid was the last to write it.

    By memory and not by tensor, so that views and results in place count. What is written later
    to memory that was let go takes its place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, Squash | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not func.is_view:
            name = func.overloadpacket.__name__.removesuffix("_")
            squash = _SQUASHES.get(name)
            if name in _HAND_ON and args and isinstance(args[0], Tensor):
                squash = self.activation_of(args[0])
            self.last[_memory(result)] = squash
        return result

    def activation_of(self, outputs: Any) -> Squash | None:
        """Return what these outputs came out of."""
        return self.last.get(_memory(outputs)) if isinstance(outputs, Tensor) else None


def _memory(tensor: Tensor) -> int:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return id(tensor)
    return tensor.untyped_storage().data_ptr()
