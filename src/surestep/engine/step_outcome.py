"""The result of a step, as the strategies return it and the state counts it."""

from typing import NamedTuple

from torch import Tensor

Named = tuple[str, Tensor]


class Gradients(NamedTuple):
    """What the backward passes of a step add up; the gradients themselves are in `.grad`.

    Attributes:
        loss_sum: the loss summed over the items, ().
        items: items of the global batch.
        logged: values that the Task or the loss logged, by name.
    """

    loss_sum: Tensor
    items: float
    logged: list[Named]


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
