"""What is known of a run of Trainer: `find(case)` of a module in `of_run` takes a `Case`."""

import math
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import nn

from surestep.doctor.curves.curve import Curve
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.state.state import trainable_parameters
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task
from surestep.record.run import Run
from surestep.trainer.review.read_curve import read_curve


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
        ratios: of the newest clipped steps: the norm of the gradients by its limit.
        no_gradient: parameters that had no gradient at any log point so far, by name.
    """

    model: nn.Module
    plan: Plan
    steps: int = 0
    timed_steps: int = 0
    seconds: float = 0.0
    data_wait_s: float = 0.0
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    no_gradient: dict[str, nn.Parameter] = field(default_factory=dict)

    def __call__(self, point: LogPoint) -> None:
        """Add a log point."""
        count = len(point.loss)
        if not self.steps:
            self.no_gradient = trainable_parameters(self.model)
        else:
            self.timed_steps += count
            self.seconds += point.seconds
            self.data_wait_s += point.data_wait_s
        self.steps += count
        if (limit := self.plan.max_grad_norm) is not None:
            ratios = [norm / limit for norm in point.grad_norm if norm is not None]
            self.ratios.extend(ratio for ratio in ratios if 1 < ratio < math.inf)
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
        folder: of the run.
    """

    loop: Loop
    task: Task
    observed: Observed
    system: SystemInfo
    is_finished: bool
    folder: Path

    @cached_property
    def curve(self) -> Curve | None:
        """The losses of the run, of earlier processes too; None if its steps are manual."""
        return None if self.task.step is not None else read_curve(Run(self.folder))
