"""Options of what a run keeps and shows."""

from typing import ClassVar, Literal

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.types import (
    ClockPeriod,
    Count,
    StepPeriod,
    Whole,
)


class Checkpoint(ConfigGroup):
    """When to save, and what to keep."""

    prefix: ClassVar[str] = "checkpoint."
    every: ClockPeriod | NotSet | None = Field(
        default=NOT_SET, description="How often to save: '1 epoch', '500 steps', '10 minutes'."
    )
    keep_last: Count | NotSet = Field(default=NOT_SET, description="Newest checkpoints to keep.")
    keep_best: Whole | NotSet = Field(
        default=NOT_SET, description="Best checkpoints to keep, by the metric."
    )
    keep_every: StepPeriod | NotSet | None = Field(
        default=NOT_SET, description="Milestones to keep for good: '10 epochs', '1000 steps'."
    )
    async_save: bool | NotSet = Field(
        default=NOT_SET, description="Write checkpoints in a thread while training goes on."
    )
    weights: Literal["all", "trained"] | NotSet = Field(
        default=NOT_SET, description="Save all weights, or none of the frozen parameters."
    )


class Logging(ConfigGroup):
    """When the host reads the device, and what is shown."""

    prefix: ClassVar[str] = "logging."
    every: ClockPeriod | NotSet | None = Field(
        default=NOT_SET,
        description="How often the host reads losses from the device and writes events.",
    )
    progress: Literal["auto", "bar", "plain", "quiet"] | NotSet = Field(
        default=NOT_SET, description="A bar, plain lines, or nothing."
    )
    ranks: Literal["first", "all"] | NotSet = Field(
        default=NOT_SET,
        description="The first process prints, or each writes RUN/log/rank-RANK.txt too.",
    )
