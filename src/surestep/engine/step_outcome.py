"""The result of a step, as the strategies return it and the state counts it."""

from typing import NamedTuple

from torch import Tensor


class Logged(NamedTuple):
    """A part of a value that a step logs: of a sum, or of a mean over items.

    Attributes:
        name: its name in the events.
        value: the part, (); of a mean the mean over `items`, times `items`.
        items: what a part of a mean is over; 0 for a part of a sum.
    """

    name: str
    value: Tensor
    items: float = 0.0


class Gradients(NamedTuple):
    """What the backward passes of a step add up; the gradients themselves are in `.grad`.

    Attributes:
        loss_sum: the loss summed over the items, ().
        items: items of the global batch.
        logged: parts of the values that the Task or the loss logged.
    """

    loss_sum: Tensor
    items: float
    logged: list[Logged]


class GradNorm(NamedTuple):
    """Gradient norms before clipping, on the device: of all gradients, and of each parameter."""

    total: Tensor
    per_parameter: Tensor  # (parameters,), in the order of `names`
    names: list[str]


class StepOutcome(NamedTuple):
    """Whether a step updated the parameters, and why not.

    Attributes:
        took_step: whether the parameters were updated, as far as the host knows.
        nonfinite_flag: if only the device knows: 0 if they were updated, else NaN, ().
        overflow: the gradients overflowed in fp16 with a finite loss.
        nonfinite: the host knows that the loss or a gradient was not finite.
    """

    took_step: bool
    nonfinite_flag: Tensor | None = None
    overflow: bool = False
    nonfinite: bool = False
