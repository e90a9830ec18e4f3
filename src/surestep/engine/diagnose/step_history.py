"""The last steps before one that is not finite."""

from collections import deque
from typing import NamedTuple

from surestep.engine.step.log_point import LogPoint

_HISTORY = 5  # steps before the one that failed


class PastStep(NamedTuple):
    """A finite step, as the host read it; None if it had no items."""

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float


class StepHistory:
    """Remembers the last few steps; called with each log point."""

    def __init__(self) -> None:
        self.steps: deque[PastStep] = deque(maxlen=_HISTORY)

    def __call__(self, point: LogPoint) -> None:
        """Add the steps of a log point."""
        rows = zip(point.loss, point.grad_norm, point.lr, strict=True)
        for step, row in enumerate(rows, start=point.first_step):
            self.steps.append(PastStep(step, *row))

    def describe(self) -> str:
        """Return the losses, gradient norms and learning rates; empty if no step is known."""
        if not self.steps:
            return ""
        columns = zip(*(step[1:] for step in self.steps), strict=True)
        rows = [
            f"{name} {', '.join('none' if value is None else f'{value:.3g}' for value in column)}"
            for name, column in zip(("loss", "gradient norm", "lr"), columns, strict=True)
        ]
        return f"The steps before it: {'; '.join(rows)}."
