"""The guards that read the device at every step; `single.DeviceGuard` does not."""

import math

import torch
from torch import Tensor

from surestep.engine.step_outcome import StepOutcome


class HostGuard:
    """Decide on the host, which reads the norm and the loss of every step."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.optimizer = optimizer

    def step(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step if both are finite."""
        if not all_finite(loss_sum, grad_norm):
            return StepOutcome(False, nonfinite=True)
        self.optimizer.step()
        return StepOutcome(True)

    def recover(self) -> None:
        """Do nothing: each step is checked by itself."""


class GradScalerGuard:
    """Decide on the host under fp16: gradients that overflow lower the scale, and do not fail.

    If the loss is finite and the scale would fall below 1, the step fails.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.optimizer = optimizer
        self.scaler = scaler

    def step(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step if both are finite, and update the scale."""
        outcome = self.step_only(loss_sum, grad_norm)
        if outcome.took_step:
            self.scaler.update()
        return outcome

    def step_only(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step if both are finite; update the scale only if they are not."""
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
        """Do nothing: each step is checked by itself."""


def all_finite(*values: Tensor) -> bool:
    """Read the values, at once."""
    return all(math.isfinite(value) for value in torch.stack([v.float() for v in values]).tolist())
