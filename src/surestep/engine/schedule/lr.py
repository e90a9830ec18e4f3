"""The learning rate and the momentum at each step, by the number of steps taken before it.

There is no scheduler to step or to save: a skipped step does not change the rate, and a resumed run
has the right rate because it knows how many steps it took. Only `reduce_on_plateau` has a state.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from surestep.base.errors import TaskError
from surestep.base.secrets import describe_error
from surestep.engine.schedule.curves import (
    HAIR,
    anneal,
    curve_of,
    curve_start,
    decay_steps,
    lr_factor,
    phases,
    position_of,
    restarts,
)
from surestep.engine.schedule.registry import Factor, ScheduleSpec, UserFunction

# A smaller reduction is not made. Source: torch.optim.lr_scheduler.ReduceLROnPlateau's eps.
SMALLEST_FALL = 1e-8


@dataclass
class PlateauState:
    """How far the rate has fallen, and what the next evaluation is compared with.

    Attributes:
        scale: the share of the peak that is left.
        best: the best metric so far.
        bad: consecutive evaluations without improvement.
        cooling: next evaluations that do not count, since the rate has just fallen.
    """

    scale: float = 1.0
    best: float | None = None
    bad: int = 0
    cooling: int = 0

    def update(
        self,
        value: float,
        own: Mapping[str, Any],
        *,
        mode: Literal["min", "max"],
        min_lr_ratio: float,
        lr: float,
    ) -> bool:
        """Add a new value of the metric; return whether the rate falls.

        Args:
            value: the metric; NaN is not an improvement.
            own: factor, patience, threshold, threshold_mode, cooldown.
            mode: whether a smaller or a larger metric is better.
            min_lr_ratio: the floor.
            lr: the peak.

        Source: https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
        """
        if self._is_better(value, own, mode):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling > 0:
            self.cooling -= 1
            self.bad = 0
        if self.bad <= own["patience"]:
            return False
        self.cooling, self.bad = own["cooldown"], 0
        lower = max(self.scale * own["factor"], min_lr_ratio)
        if (self.scale - lower) * lr <= SMALLEST_FALL:
            return False
        self.scale = lower
        return True

    def state_dict(self) -> dict[str, float | None]:
        """Return the state as it is now."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state in place, since the schedule has this object."""
        vars(self).update(state)

    def forget(self) -> None:
        """Forget the values so far, when the metric changes; the rate stays."""
        self.best, self.bad = None, 0

    def _is_better(self, value: float, own: Mapping[str, Any], mode: str) -> bool:
        sign, threshold = (1 if mode == "min" else -1), float(own["threshold"])
        if self.best is None:
            return sign * value < math.inf
        if own["threshold_mode"] == "abs":
            return sign * value < sign * self.best - threshold
        return sign * value < sign * self.best * (1 - sign * threshold)


def momentum(shape: ScheduleSpec) -> Factor | None:
    """Return the momentum by the number of steps taken, where it is cycled with the rate.

    Source: torch.optim.lr_scheduler.OneCycleLR and CyclicLR.
    """
    if shape.momentum is None:
        return None
    low, high = shape.momentum
    if shape.name == "one_cycle":
        own = shape.curve_options
        ends = phases(
            decay_steps(shape), pct_start=own["pct_start"], three_phase=own["three_phase"]
        )
        values = [high, low, high, high][: len(ends)]
        curve = anneal(list(zip(ends, values, strict=True)), own["anneal_strategy"])
    else:
        height = curve_of(shape)

        def curve(position: float) -> float:
            return high - (high - low) * height(position)

    every, start = shape.interval, curve_start(shape) / shape.interval
    return lambda steps_taken: curve(max(position_of(steps_taken, every) - start, 0.0))


def make_lr_factor(shape: ScheduleSpec, plateau: PlateauState, own: UserFunction | None) -> Factor:
    """Return the factor of a run, with the state of a plateau or by the Task's function."""
    if own is not None:
        return _checked(own, int(shape.total))
    at = lr_factor(shape)
    if shape.name == "reduce_on_plateau":
        return lambda steps_taken: at(steps_taken) * plateau.scale
    return at


def _checked(function: UserFunction, total: int) -> Factor:
    """Return the Task's function with a check of every value.

    Raises:
        TaskError: it is not a function, fails, or returns anything but a number of at least 0.
    """
    if not callable(function):
        raise TaskError(
            f"schedule is a {type(function).__name__}, not a function of (steps_taken, total). "
            "Give one that returns the factor on the rate, or use Config(schedule=...)."
        )

    def at(steps_taken: int) -> float:
        value = function(steps_taken, total)
        if not (isinstance(value, Real) and 0 <= value < math.inf):
            raise TaskError(
                f"Task(schedule=...) returned {value!r} for steps_taken={steps_taken} and "
                f"total={total}. Return a finite number of at least 0: the factor on optim.lr."
            )
        return float(value)

    for position in (0, total - 1):
        try:
            at(position)
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"Task(schedule=...) failed for steps_taken={position} and total={total}: "
                f"{describe_error(error)}. It is called as schedule(steps_taken, total)."
            ) from error
    return at


def no_momentum_message(name: str) -> str:
    """Return the message for an optimizer without a momentum to cycle."""
    return (
        f"schedule.name={name!r} cycles the momentum, and the optimizer has none. Use "
        "optim.momentum=0.9 with optim.name='sgd', an optimizer with betas such as 'adamw', or "
        "schedule.cycle_momentum=False."
    )


def cycle_ends(shape: ScheduleSpec) -> tuple[int, ...]:
    """List after how many steps a cycle ends, if a checkpoint is to be saved there."""
    if not shape.save_cycles:
        return ()
    start, own = curve_start(shape), shape.curve_options
    length = shape.total - start
    if shape.name == "cosine_restarts":
        positions = restarts(length, T_0=own["T_0"], T_mult=own["T_mult"], cycles=own["cycles"])[1:]
    else:
        period = own["step_size_up"] + own["step_size_down"]
        positions = [period * cycle for cycle in range(1, int(length / period + HAIR) + 1)]
    ends = (start + position for position in positions if position <= length + HAIR)
    return tuple(math.ceil(end - HAIR) for end in ends)


def lr_summary(
    shape: ScheduleSpec, lr: float, own: UserFunction | None = None
) -> Mapping[str, float | None]:
    """Return the first, the peak and the last rate of the run; None is not known."""
    at, total = make_lr_factor(shape, PlateauState(), own), int(shape.total)
    every = range(total) if total <= 100_000 else range(0, total, 97)
    open_end = shape.name == "reduce_on_plateau"
    return {
        "first": lr * at(0),
        "peak": lr * max(map(at, every)),
        "last": None if open_end else lr * at(total - 1),
    }
