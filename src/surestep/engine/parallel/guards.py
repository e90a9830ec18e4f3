"""Guards: whether a step updates the parameters, decided on the device or on the host."""

import math
from typing import Any

import torch
from torch import Tensor

from surestep.engine.device import sum_dtype
from surestep.engine.step_outcome import StepOutcome


class DeviceGuard:
    """Decide on the device: after the first value that is not finite, every step is skipped.

    So the state that the host sees at the next log point is the one before that step. The flag is 0
    while everything was finite, and NaN from then on: 0 * inf and 0 * NaN are NaN.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer: Any = optimizer
        device = optimizer.param_groups[0]["params"][0].device
        self.nonfinite = torch.zeros((), device=device)
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)  # for torch's kernels

    def step(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step with torch's switch: a fused kernel does nothing if found_inf is 1."""
        flag = self.nonfinite = self.find_nonfinite(loss_sum, grad_norm)
        self.update()
        return StepOutcome(True, flag)

    def find_nonfinite(self, loss_sum: Tensor, grad_norm: Tensor) -> Tensor:
        """Return the new flag, (), and set torch's switch by it."""
        flag = torch.add(torch.add(self.nonfinite, loss_sum, alpha=0), grad_norm, alpha=0)
        torch.ne(flag, 0, out=self.found_inf)
        return flag

    def update(self) -> None:
        """Step the optimizer, which does nothing if the switch is on."""
        self.optimizer.grad_scale = None
        self.optimizer.found_inf = self.found_inf
        self.optimizer.step()


class HostGuard:
    """Decide on the host, which reads the norm and the loss of every step.

    Under fp16, gradients that overflow lower the scale, and do not fail. If the loss is finite and
    the scale would fall below 1, the step fails.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.optimizer = optimizer
        self.scaler = scaler

    def step(
        self, loss_sum: Tensor, grad_norm: Tensor, *, updates_scale: bool = True
    ) -> StepOutcome:
        """Step if both are finite; a step that was taken `updates_scale`."""
        if all_finite(loss_sum, grad_norm):
            self.scaler.step(self.optimizer)
            if updates_scale:
                self.scaler.update()
            return StepOutcome(True)
        before = self.scaler.state_dict()
        self.scaler.update()
        is_scaled = self.scaler.is_enabled()
        overflow = is_scaled and all_finite(loss_sum) and self.scaler.get_scale() >= 1
        if not overflow:
            self.scaler.load_state_dict(before)
        return StepOutcome(False, overflow=overflow, nonfinite=not overflow)

    def step_without_reading(self, *_: Tensor) -> StepOutcome:
        """Step as if everything was finite, for a trace of the memory of a step."""
        self.optimizer.step()
        self.scaler.update()
        return StepOutcome(True)


def all_finite(*values: Tensor) -> bool:
    """Read the values, at once; one beyond the range of float32 is finite."""
    wide = [value.to(sum_dtype(value.device)) for value in values]
    return all(map(math.isfinite, torch.stack(wide).tolist()))
