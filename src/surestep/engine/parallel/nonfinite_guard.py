"""The guards that read the device at every step; `single.Sticky` does not."""

import math

import torch
from torch import Tensor

from surestep.engine.step_outcome import StepOutcome


class HostGuard:
    """Decide on the host, which reads the norm and the loss of every step."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.optimizer = optimizer

    def step(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step where both are finite."""
        if not all_finite(loss_sum, grad_norm):
            return StepOutcome(False, nonfinite=True)
        self.optimizer.step()
        return StepOutcome(True)

    def recover(self) -> None:
        """Do nothing: each step is judged anew."""


class GradScalerGuard:
    """Decide on the host under fp16: gradients that overflow are no failure, they lower the scale.

    A run whose loss is finite and whose scale falls under 1 cannot be scaled: that is one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.optimizer = optimizer
        self.scaler = scaler

    def step(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step where both are finite, and let the scale follow."""
        outcome = self.step_only(loss_sum, grad_norm)
        if outcome.took_step:
            self.scaler.update()
        return outcome

    def step_only(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step where both are finite; the scale follows only where they are not."""
        if all_finite(loss_sum, grad_norm):
            self.scaler.step(self.optimizer)
            return StepOutcome(True)
        kept = self.scaler.state_dict()
        self.scaler.update()
        if all_finite(loss_sum) and self.scaler.get_scale() >= 1:
            return StepOutcome(False, overflow=True)
        self.scaler.load_state_dict(kept)
        return StepOutcome(False, nonfinite=True)

    def recover(self) -> None:
        """Do nothing: each step is judged anew."""


def all_finite(*values: Tensor) -> bool:
    """Read the values, at once."""
    return all(math.isfinite(value) for value in torch.stack([v.float() for v in values]).tolist())
