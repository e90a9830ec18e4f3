"""Values of the Plan that packages above it compute with."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from surestep.config.duration import count_periods


class TracedStep(NamedTuple):
    """What a trace of a step shows.

    Attributes:
        peak: bytes of memory that it takes; None is not known.
        attention: what computes scaled_dot_product_attention; empty if the model does not use it,
            and None if that is not known.
    """

    peak: int | None = None
    attention: tuple[str, ...] | None = None


def not_traced(plan: object) -> TracedStep:
    """Know nothing of the step of a Plan."""
    return TracedStep()


@dataclass(frozen=True)
class AveragingSpec:
    """An average with every option decided; lengths are in steps.

    `counted_from` is the step from which the intervals are counted, at or before `start`.
    `by_epochs`: intervals are of epochs, and an update does not need that its step was taken.
    """

    kind: Literal["none", "ema", "swa"]
    decay: float | None
    warmup: bool | None
    start: int
    interval: float
    buffers: Literal["copy", "average", "recompute"]
    lr: float | None
    anneal: int
    counted_from: int = 0
    by_epochs: bool = False

    def count_updates(self, steps: int) -> int:
        """Return how many intervals have ended after `start`."""
        before, now = (
            count_periods(step - self.counted_from, self.interval)
            for step in (self.start, max(self.start, steps))
        )
        return now - before


def raw_name(part: str) -> str:
    """Return the name of a validation set that is evaluated with the raw weights."""
    return f"{part}_raw"


class WrapUnits(NamedTuple):
    """The blocks of a model, or what is wrong with the choice.

    Attributes:
        names: of the modules, outer ones before those inside them.
        text: a description of them.
        problem: why they cannot be used, with what to type instead; empty if they can.
    """

    names: tuple[str, ...] = ()
    text: str = ""
    problem: str = ""


def no_blocks(_: str) -> WrapUnits:
    """Choose nothing: there is no model."""
    return WrapUnits()


@dataclass(frozen=True)
class ExcludedSamples:
    """The samples that are excluded.

    Attributes:
        samples: their indices, sorted, each once.
        count: the number of samples, with those.
        source: the file that names them; empty if they were set one by one.
    """

    samples: tuple[int, ...]
    count: int
    source: str = ""

    def __str__(self) -> str:
        return f"{len(self.samples):,} of {self.count:,} samples"

    @property
    def left(self) -> int:
        """The number of samples that stay."""
        return self.count - len(self.samples)

    def kept(self) -> Tensor:
        """Return which samples stay, (count,) bool."""
        kept = torch.ones(self.count, dtype=torch.bool)
        kept[list(self.samples)] = False
        return kept
