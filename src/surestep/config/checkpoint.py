"""Options of checkpoints and logging."""

from typing import ClassVar, Literal

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import DISPLAY, ResumeEffect, option
from surestep.config.types import (
    ClockPeriod,
    Count,
    StepPeriod,
    Whole,
)


class Checkpoint(ConfigGroup):
    """When to save, and which checkpoints to keep."""

    prefix: ClassVar[str] = "checkpoint."
    resume: ClassVar[ResumeEffect] = DISPLAY
    every: ClockPeriod | NotSet | None = option(
        "How often to save: '1 epoch', '500 steps', '10 minutes'.",
        default=("1 epoch", "no more than an epoch is lost"),
    )
    keep_last: Count | NotSet = option(
        "Number of newest checkpoints to keep.", default=(2, "the newest, and one before it")
    )
    keep_best: Whole | NotSet = option(
        "Number of best checkpoints to keep, by validation.metric.",
        default=(1, "the best by validation.metric"),
    )
    keep_every: StepPeriod | NotSet | None = option(
        "Interval of milestone checkpoints that are never deleted: '10 epochs', '1000 steps'.",
        default=(None, "not set: no milestones are kept"),
    )
    async_save: bool | NotSet = option(
        "Write checkpoints in a background thread while training continues."
    )
    weights: Literal["all", "trained"] | NotSet = option(
        "all: save all weights; trained: leave out frozen parameters."
    )


class Logging(ConfigGroup):
    """When to log, and what to show."""

    prefix: ClassVar[str] = "logging."
    resume: ClassVar[ResumeEffect] = DISPLAY
    every: ClockPeriod | NotSet | None = option(
        "How often the host reads losses from the device and writes events.",
        default=("50 steps", "each read waits for the device; 50 steps hide it"),
    )
    progress: Literal["auto", "bar", "plain", "quiet"] | NotSet = option(
        "How to show progress: a bar, plain lines, or nothing."
    )
