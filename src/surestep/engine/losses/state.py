"""The state of a loss module: buffers that it updates itself, such as a moving average."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from surestep.base.errors import CheckpointError
from surestep.engine.buffers import (
    changed_buffers,
    every_buffer,
    initial_values,
    restore_buffers,
)
from surestep.engine.losses.base import Loss

NAME = "the loss"  # what its state is called in a checkpoint


class LossState:
    """The buffers of a loss that changed since it was built."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.built = initial_values(self.module, every_buffer)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the buffers that changed, by name."""
        return changed_buffers(self.module, self.built, every_buffer)

    def load_state_dict(self, state: Any) -> None:
        """Restore them.

        Raises:
            CheckpointError: they are those of a different loss.
        """
        if not isinstance(state, Mapping) or not state.keys() <= self.built.keys():
            raise CheckpointError(
                f"The checkpoint has the buffers {', '.join(map(str, state))} of a loss, and the "
                f"loss here has {', '.join(self.built) or 'none'}. Use the one it was trained with."
            )
        restore_buffers(self.module, self.built, state, every_buffer)


def state_of_loss(loss: Loss) -> dict[str, LossState]:
    """Return what a checkpoint holds of a loss, by name; nothing if it has no buffers."""
    module = own_module(loss)
    return {} if module is None else {NAME: LossState(module)}


def own_module(loss: Loss) -> nn.Module | None:
    """Return the module of a loss if a step may change its buffers.

    The losses of torch and of surestep have buffers too, such as class weights, and change none.
    """
    for module in () if loss.module is None else loss.module.modules():
        home = type(module).__module__.partition(".")[0]
        if module._buffers and home not in ("torch", "surestep"):
            return loss.module
    return None
