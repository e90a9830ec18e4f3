"""Options of what a run keeps and shows."""

from typing import ClassVar, Literal

from pydantic import Field

from surestep.base.groups.group import Group
from surestep.base.values import (
    ClockPeriod,
    Count,
    StepPeriod,
    Whole,
)


class Checkpoint(Group):
    """When to save, and what to keep."""

    prefix: ClassVar[str] = "checkpoint."
    every: ClockPeriod | None = Field(
        default=None, description="How often to save: '1 epoch', '500 steps', '10 minutes'."
    )
    keep_last: Count | None = Field(default=None, description="Newest checkpoints to keep.")
    keep_best: Whole | None = Field(
        default=None, description="Best checkpoints to keep, by the metric."
    )
    keep_every: StepPeriod | None = Field(
        default=None, description="Milestones to keep for good: '10 epochs', '1000 steps'."
    )
    async_save: bool | None = Field(
        default=None, description="Write checkpoints in a thread while training goes on."
    )
    weights: Literal["all", "trained"] | None = Field(
        default=None, description="Save all weights, or none of the frozen parameters."
    )


class Logging(Group):
    """When the host reads the device, and what is shown."""

    prefix: ClassVar[str] = "logging."
    every: ClockPeriod | None = Field(
        default=None,
        description="How often the host reads losses from the device and writes events.",
    )
    progress: Literal["auto", "bar", "plain", "quiet"] | None = Field(
        default=None, description="A bar, plain lines, or nothing."
    )
    ranks: Literal["first", "all"] | None = Field(
        default=None,
        description="The first process prints, or each writes RUN/log/rank-RANK.txt too.",
    )
