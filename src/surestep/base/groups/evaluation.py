"""Options of when to evaluate, and what follows from it."""

from typing import ClassVar, Literal

from pydantic import Field

from surestep.base.groups.group import Group
from surestep.base.values import Count, NotNegative, Period, StepPeriod


class Validation(Group):
    """When to evaluate, and by what to judge."""

    prefix: ClassVar[str] = "validation."
    every: Period | None = Field(
        default=None, description="How often to evaluate: '1 epoch', '500 steps'."
    )
    on_start: bool | None = Field(
        default=None, description="Also evaluate once before the first step."
    )
    batch_size: Count | None = Field(default=None, description="Samples evaluated at once.")
    metric: str | None = Field(
        default=None, description="What 'best' means: 'loss', a metric's name, or 'set/metric'."
    )
    mode: Literal["min", "max"] | None = Field(
        default=None, description="Whether a smaller or a larger metric is better."
    )


class EarlyStop(Group):
    """Stop when the metric no longer gets better."""

    prefix: ClassVar[str] = "early_stop."
    patience: Count | None = Field(
        default=None,
        description="Stop after this many evaluations in a row without a better metric.",
    )
    start: StepPeriod | None = Field(
        default=None,
        description="Count evaluations only from here on: '5 epochs', '1000 steps'.",
    )
    min_delta: NotNegative | None = Field(
        default=None, description="A change smaller than this does not count as better."
    )
