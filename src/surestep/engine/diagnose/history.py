"""The last steps before one that was not finite, as the host read them."""

from collections import deque
from typing import NamedTuple

from surestep.engine.step.log_point import LogPoint

KEPT = 5


class PastStep(NamedTuple):
    """A step that was finite; None is a step without items."""

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float


class StepHistory:
    """Remembers the last few steps; called with each log point."""

    def __init__(self) -> None:
        self.steps: deque[PastStep] = deque(maxlen=KEPT)

    def __call__(self, point: LogPoint) -> None:
        """Take in the steps of a log point."""
        rows = zip(point.loss, point.grad_norm, point.lr, strict=True)
        for step, row in enumerate(rows, start=point.first_step):
            self.steps.append(PastStep(step, *row))

    def describe(self) -> str:
        """Tell how losses, gradients and rates went; nothing where no step is known."""
        if not self.steps:
            return ""
        columns = zip(*(each[1:] for each in self.steps), strict=True)
        names = ("loss", "gradient norm", "lr")
        rows = [
            f"{name} {', '.join(_figure(each) for each in column)}"
            for name, column in zip(names, columns, strict=True)
        ]
        return f"The steps before it: {'; '.join(rows)}."


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
