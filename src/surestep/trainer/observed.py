"""What a run's log points show of it, gathered for `findings`."""

import math
from dataclasses import dataclass, field

from torch import nn

from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import trainable_parameters
from surestep.engine.step.log_point import LogPoint

GROUPS = 64  # of consecutive losses; twice as many are merged in pairs
RATIOS = 4096  # gradient norms over the limit that are kept


@dataclass
class Group:
    """Consecutive losses: how many, their sum, and the sum of their squares."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, other: "Group") -> None:
        """Take in other losses."""
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    @property
    def mean(self) -> float:
        """The mean loss."""
        return self.total / self.count

    @property
    def variance(self) -> float:
        """The variance of a single loss."""
        return max(self.squares / self.count - self.mean**2, 0.0)


@dataclass
class Observed:
    """What this process has seen at its log points; called with each.

    Attributes:
        model: that is trained.
        plan: of the run.
        steps: in all; timed_steps, seconds and waited_s leave the first log point out, in which
            workers start and kernels are chosen.
        first_step: the first that was seen; 0 before there is one.
        clipped: steps whose norm was above the limit; ratios: of norm to limit, of those.
        losses: in groups of consecutive steps.
        no_gradient: parameters that were trained and had no gradient at any log point.
        items_per_step: of the last log point.
    """

    model: nn.Module
    plan: Plan
    steps: int = 0
    timed_steps: int = 0
    seconds: float = 0.0
    data_wait_s: float = 0.0
    first_step: int = 0
    clipped: int = 0
    ratios: list[float] = field(default_factory=list)
    losses: list[Group] = field(default_factory=list)
    no_gradient: dict[str, nn.Parameter] = field(default_factory=dict)
    items_per_step: float = 0.0

    def __call__(self, point: LogPoint) -> None:
        """Take in a log point."""
        count = len(point.loss)
        if not self.steps:
            self.first_step = point.first_step
            self.no_gradient = trainable_parameters(self.model)
        else:
            self.timed_steps += count
            self.seconds += point.seconds
            self.data_wait_s += point.data_wait_s
        self.steps += count
        self.items_per_step = point.items / count
        self._take_norms(point)
        self._take_losses(point)
        self.no_gradient = {
            name: each
            for name, each in self.no_gradient.items()
            if each.requires_grad and each.grad is None
        }

    def _take_norms(self, point: LogPoint) -> None:
        limit = self.plan.max_grad_norm
        if limit is None:
            return
        ratios = [norm / limit for norm in point.grad_norm if norm is not None]
        above = [each for each in ratios if 1 < each < math.inf]
        self.clipped += len(above)
        self.ratios = (self.ratios + above)[-RATIOS:]

    def _take_losses(self, point: LogPoint) -> None:
        size = 1 if not self.losses else max(each.count for each in self.losses)
        for loss in point.loss:
            if loss is None or not math.isfinite(loss):
                continue
            if not self.losses or self.losses[-1].count >= size:
                self.losses.append(Group())
            self.losses[-1].add(Group(1, loss, loss * loss))
            if len(self.losses) == 2 * GROUPS:
                for first, second in zip(self.losses[::2], self.losses[1::2], strict=True):
                    first.add(second)
                del self.losses[1::2]
                size *= 2
