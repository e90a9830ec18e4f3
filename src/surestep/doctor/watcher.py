"""The run-time side of a rule: a class `Watch` in its module, derived from `Watcher`.

The hooks call its methods while a script trains. They must not change anything, draw random
numbers, or read values of a device: a tensor may be kept and read in `observe`, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@dataclass(frozen=True)
class Location:
    """A line of the user's source.

    Attributes:
        file: its path.
        line: from 1; 0 if it is not known.
    """

    file: str
    line: int


NOWHERE = Location("", 0)


@dataclass(frozen=True)
class Observation:
    """A mistake that a rule saw while a script ran.

    Attributes:
        location: where in the user's source.
        message: what is wrong, with the numbers that show it.
        since_step: the first step with it, from 1.
        evidence: the numbers.
    """

    location: Location
    message: str
    since_step: int
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    """What all rules know of the script that runs.

    Attributes:
        locate: returns the line of the user's source that is being executed.
        name: returns the name of a parameter in its model, or its shape.
        step: steps that optimizers have taken together.
        backwards: backward passes so far.
    """

    locate: Callable[[], Location]
    name: Callable[[Tensor], str]
    step: int = 0
    backwards: int = 0


class Watcher:
    """What a rule does while a script runs: nothing, unless it overrides a method.

    `run.step` is the number of steps that were taken before.
    """

    def on_zero_grad(self, run: Run, parameters: Sequence[Tensor]) -> None:
        """Called before the gradients of parameters are zeroed."""

    def on_backward(self, run: Run, loss: Tensor) -> None:
        """Called before a backward pass; `run.backwards` counts it."""

    def on_clip(self, run: Run, parameters: Sequence[Tensor], limit: float, norm: Tensor) -> None:
        """Called after gradients were clipped; `norm` is that before, and may not be read yet."""

    def on_step(self, run: Run, optimizer: Optimizer) -> None:
        """Called before a step of an optimizer, and of its closure."""

    def after_step(self, run: Run, optimizer: Optimizer) -> None:
        """Called after a step of an optimizer; `run.step` counts it."""

    def on_unscale(self, run: Run, optimizer: Optimizer) -> None:
        """Called before a GradScaler unscales the gradients of an optimizer."""

    def on_scale(self, run: Run) -> None:
        """Called when an enabled GradScaler scales a loss."""

    def on_forward(self, run: Run, module: nn.Module) -> None:
        """Called before some calls of each module: those of the first steps, and some later."""

    def on_loss(self, run: Run, name: str, prediction: Tensor, target: Tensor) -> None:
        """Called before a loss of torch.nn.functional, such as "cross_entropy"."""

    def observe(self, run: Run) -> Iterator[Observation]:
        """Yield the mistakes that were seen. Values of devices may be read here."""
        yield from ()
