"""The verbs of a step, named after PyTorch's; the step itself knows no backend."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from surestep.engine.batch import Batch
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.losses.base import Loss
from surestep.engine.step_outcome import GradNorm, StepOutcome

Named = tuple[str, Tensor]


class Strategy(Protocol):
    """How many processes make one step; the verbs are those of one optimizer."""

    world: Communicator
    module: nn.Module
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    cleared: list[nn.Parameter]  # what a step begins without gradients of

    def count_items(self, batch: Batch, loss: Loss) -> Batch:
        """Return the batch with the items of all ranks, or what gradients can be divided by first.

        The ranks also agree on what one of them requests, here or in `settle_items`.
        """
        ...

    def settle_items(self, items: float, logged: list[Named]) -> tuple[float, list[Named]]:
        """Return the items of all ranks and what is logged; gradients are those of the mean then.

        Args:
            items: that `count_items` returned.
            logged: means by these items.
        """
        ...

    def reduce_loss(self, loss_sum: Tensor) -> Tensor:
        """Add up the loss of all ranks, on the device."""
        ...

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Return the context of a forward and backward whose gradients are reduced if `when`."""
        ...

    def backward(self, loss_sum: Tensor, items: float) -> None:
        """Add the gradient of `loss_sum / items` to the parameters' `.grad`."""
        ...

    @property
    def unscale(self) -> Callable[[], None]:
        """`unscale()` takes the loss scale out of the gradients, where there is one."""
        ...

    def clip_grad_norm(self) -> GradNorm:
        """Measure the norm of the gradients and clip them as the Plan says."""
        ...

    @property
    def step(self) -> Callable[[Tensor, Tensor], StepOutcome]:
        """`step(loss_sum, grad_norm)` moves the parameters, unless something is not finite."""
        ...

    def reset_guard(self) -> None:
        """Let steps be taken again after one that was not finite."""
        ...
