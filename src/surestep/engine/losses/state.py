"""The state of a loss that is a module: buffers that it moves itself, such as a moving average."""

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
    """The buffers of a loss that are not as they were built."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.built = initial_values(self.module, every_buffer)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the buffers that were moved, by name."""
        return changed_buffers(self.module, self.built, every_buffer)

    def load_state_dict(self, state: Any) -> None:
        """Put them back.

        Raises:
            CheckpointError: they are those of another loss.
        """
        if not isinstance(state, Mapping) or not state.keys() <= self.built.keys():
            raise CheckpointError(
                f"The checkpoint has the buffers {', '.join(map(str, state))} of a loss, and the "
                f"loss here has {', '.join(self.built) or 'none'}. Use the one it was trained with."
            )
        restore_buffers(self.module, self.built, state, every_buffer)


def state_of_loss(loss: Loss) -> dict[str, LossState]:
    """Return what a checkpoint holds of a loss, by name; nothing where it has no buffers."""
    module = own_module(loss)
    return {} if module is None else {NAME: LossState(module)}


def own_module(loss: Loss) -> nn.Module | None:
    """Return the module of a loss if a step may move its buffers.

    The losses of torch and of the table have buffers too, such as class weights, and move none.
    """
    for each in () if loss.module is None else loss.module.modules():
        if each._buffers and type(each).__module__.partition(".")[0] not in ("torch", "surestep"):
            return loss.module
    return None
