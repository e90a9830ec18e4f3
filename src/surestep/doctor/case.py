"""What the rules know of a run of Trainer: `review(case)` of their modules takes a `Case`.

This module imports torch, so a module of a rule imports it for type checkers only.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.state.state import trainable_parameters
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task

_BINS = 40  # of the steps of a run, whose losses are summed


@dataclass
class Observed:
    """What this process read at its log points; called with each.

    Attributes:
        model: that is trained.
        plan: the options of the run.
        steps: that were read.
        timed_steps: those without the first log point, in which the workers of the data start.
        seconds: that the timed steps took.
        data_wait_s: the part of `seconds` in which the loop waited for data.
        first_step: that this process took.
        ratios: of the newest clipped steps: the norm of the gradients by its limit.
        losses: the number, the sum and the sum of squares of the finite losses, in equal parts of
            the steps of the run; an array of 40 rows.
        no_gradient: parameters that had no gradient at any log point so far, by name.
    """

    model: nn.Module
    plan: Plan
    steps: int = 0
    timed_steps: int = 0
    seconds: float = 0.0
    data_wait_s: float = 0.0
    first_step: int = 0
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    losses: Any = field(default_factory=lambda: np.zeros((_BINS, 3)))
    no_gradient: dict[str, nn.Parameter] = field(default_factory=dict)

    def __call__(self, point: LogPoint) -> None:
        """Add a log point."""
        count = len(point.loss)
        if not self.steps:
            self.first_step = point.first_step
            self.no_gradient = trainable_parameters(self.model)
        else:
            self.timed_steps += count
            self.seconds += point.seconds
            self.data_wait_s += point.data_wait_s
        self.steps += count
        if (limit := self.plan.max_grad_norm) is not None:
            ratios = [norm / limit for norm in point.grad_norm if norm is not None]
            self.ratios.extend(ratio for ratio in ratios if 1 < ratio < math.inf)
        for step, loss in enumerate(point.loss, start=point.first_step):
            if loss is not None and math.isfinite(loss):
                bin_ = (step - 1) * _BINS // max(self.plan.total_steps, step)
                self.losses[bin_] += 1.0, loss, loss * loss
        self.no_gradient = {
            name: parameter
            for name, parameter in self.no_gradient.items()
            if parameter.requires_grad and parameter.grad is None
        }


@dataclass(frozen=True)
class Case:
    """A run of Trainer.

    Attributes:
        loop: with the Plan, the state and the loader.
        task: the model, the loss and the data.
        observed: what was read at the log points.
        system: the machine.
        is_finished: whether all steps are done; a rule reads data only then.
    """

    loop: Loop
    task: Task
    observed: Observed
    system: SystemInfo
    is_finished: bool
