"""The one schedule with a memory: it goes by what the evaluations measure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# A fall smaller than this is not made. Source: torch.optim.lr_scheduler.ReduceLROnPlateau's eps.
SMALLEST_FALL = 1e-8


@dataclass
class PlateauState:
    """How far the rate has fallen, and what is remembered to judge the next evaluation.

    Attributes:
        scale: the share of the peak that is left.
        best: the best metric so far.
        bad: evaluations in a row that were no better.
        cooling: evaluations to come that are not counted, since the rate has just fallen.
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
        """Take in a new value of the metric; say whether the rate falls.

        Args:
            value: the metric; one that is not a number is no better.
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

    def forget(self) -> None:
        """Forget what was measured, which says nothing of another metric; the rate stays."""
        self.best, self.bad = None, 0

    def _is_better(self, value: float, own: Mapping[str, Any], mode: str) -> bool:
        if self.best is None:
            return value == value
        sign, threshold = (1 if mode == "min" else -1), float(own["threshold"])
        if own["threshold_mode"] == "abs":
            return sign * value < sign * self.best - threshold
        return sign * value < sign * self.best * (1 - sign * threshold)
