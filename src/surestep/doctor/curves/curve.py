"""The losses of a run by step, and their means over equal parts of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
_BINS = 40  # parts of a run
_SIGMAS = 1.4826  # standard deviations of a normal distribution in its median distance from 0
_OUTLIER = 5.0  # standard deviations
_FIRST = 5  # values, whose median is the loss at the start; its error is from more of them


def as_values(values: object) -> Values:
    """Return a sequence of numbers as an array of float64."""
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True)
class Evaluations:
    """What was measured on the validation data.

    Attributes:
        steps: of the evaluations, rising.
        losses: of each; NaN if it has none.
        scores: by name, metrics of which 1 is perfect, such as accuracy; NaN if not measured.
    """

    steps: Values = field(default_factory=lambda: np.zeros(0))
    losses: Values = field(default_factory=lambda: np.zeros(0))
    scores: Mapping[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """The losses of a run.

    Attributes:
        steps: the last step of each value, rising.
        losses: means over the steps since the value before; may be NaN or infinite.
        rates: learning rate at each value; None if they are not known.
        evaluations: on the validation data.
        classes: number of classes if the loss is a cross-entropy, so that equal probabilities
            have the loss log(classes); None otherwise, or if it is not known.
        total_steps: planned; None if that is not known.
        has_start: whether the first value is that of the initial weights.
        failed_at: the step whose loss or gradient was not finite, and which ended the run.
        is_regularized: whether the training loss is made harder than that of the validation, by
            dropout, label smoothing or mixup; None if that is not known.

    Raises:
        ValueError: the arrays differ in length, or the steps do not rise.
    """

    steps: Values
    losses: Values
    rates: Values | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    classes: int | None = None
    total_steps: int | None = None
    has_start: bool = True
    failed_at: int | None = None
    is_regularized: bool | None = None

    def __post_init__(self) -> None:
        if self.steps.shape != self.losses.shape or self.steps.ndim != 1:
            raise ValueError(f"{len(self.steps)} steps have {len(self.losses)} losses")
        if (np.diff(self.steps) <= 0).any() or (np.diff(self.evaluations.steps) <= 0).any():
            raise ValueError("the steps do not rise")

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        """Whether each loss is finite."""
        return np.isfinite(self.losses)

    @cached_property
    def begin(self) -> float:
        """The step before the first value, which may cover several."""
        if not len(self.steps):
            return 0.0
        gaps = np.diff(self.steps[:10])
        return float(self.steps[0] - (np.median(gaps) if len(gaps) else 1.0))

    @property
    def length(self) -> float:
        """Number of steps that the values cover."""
        return float(self.steps[-1] - self.begin) if len(self.steps) else 0.0

    @property
    def initial(self) -> float:
        """The first finite loss; NaN if there is none."""
        first = self.losses[self.finite][:1]
        return float(first[0]) if len(first) else np.nan

    @cached_property
    def start(self) -> Level:
        """The loss at the start: the median of the first values; NaN if there are none."""
        first = self.losses[self.finite][: 4 * _FIRST]
        if not len(first):
            return Level(np.nan, np.nan)
        scatter = _spread(np.diff(first)) / np.sqrt(2.0)
        median = float(np.median(first[:_FIRST]))
        return Level(median, float(1.25 * scatter / np.sqrt(_FIRST)))

    @cached_property
    def bins(self) -> Bins:
        """The finite losses, averaged over equal parts of the run."""
        steps, losses = self.steps[self.finite], self.losses[self.finite]
        if not len(steps):
            return Bins(*(np.zeros(0) for _ in range(3)))
        count = min(_BINS, max(1, len(steps) // 2))
        width = (steps[-1] - steps[0]) / count or 1.0
        at = np.minimum(((steps - steps[0]) / width).astype(int), count - 1)
        groups = [losses[at == number] for number in range(count) if (at == number).any()]
        ends = [steps[at == number][-1] for number in range(count) if (at == number).any()]
        groups = list(map(_clip_outliers, groups))
        means = as_values([group.mean() for group in groups])
        return Bins(as_values(ends), means, as_values(list(map(_standard_error, groups))))


def _spread(values: Values) -> float:
    """Return the standard deviation of values around 0, whatever a few outliers are."""
    return _SIGMAS * float(np.median(np.abs(values))) if len(values) else 0.0


def _clip_outliers(values: Values) -> Values:
    """Limit the distance from the median: single bad batches do not change the mean of a bin."""
    median = np.median(values)
    limit = _OUTLIER * _spread(values - median)
    return np.clip(values, median - limit, median + limit) if limit else values


def _standard_error(values: Values) -> float:
    """Return the standard error of a mean, from the differences of neighbors: a trend is none."""
    if len(values) < 2:
        return 0.0
    return float(np.sqrt(0.5 * np.mean(np.diff(values) ** 2) / len(values)))


@dataclass(frozen=True)
class Level:
    """A mean of several bins, with its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Bins:
    """Means over equal parts of a run.

    Attributes:
        ends: the last step of each.
        means: of the losses.
        errors: standard errors of the means, if the losses of the steps are independent.
    """

    ends: Values
    means: Values
    errors: Values

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def smooth(self) -> Values:
        """The means without single outliers: the median of each and its neighbors."""
        if len(self) < 3:
            return self.means
        padded = np.concatenate([self.means[:1], self.means, self.means[-1:]])
        return np.asarray(np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0))

    def level(self, first: float, last: float) -> Level:
        """Return the mean between two shares of the run, such as 0.75 and 1.

        The error is the larger one of two: from the scatter within the bins, and from that between
        neighboring bins, which is larger if the losses of neighboring steps are similar.
        """
        begin = min(int(first * len(self)), len(self) - 1)
        end = max(begin + 1, int(np.ceil(last * len(self))))
        values, means = self.smooth[begin:end], self.means[begin:end]
        within = float(np.median(self.errors[begin:end]))
        between = _spread(np.diff(means)) / np.sqrt(2.0)
        error = max(within, between) / np.sqrt(len(values))
        return Level(float(values.mean()), float(error))
