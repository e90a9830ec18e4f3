"""Options of the learning-rate schedule."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from surestep.base.groups.group import Group
from surestep.base.values import (
    StepPeriod,
    Warmup,
)


class Schedule(Group):
    """The learning rate as a function of optimizer steps taken."""

    prefix: ClassVar[str] = "schedule."
    name: Literal["constant", "cosine"] | None = Field(
        default=None, description="constant, or cosine: from the peak down to the floor."
    )
    warmup: Warmup | None = Field(
        default=None,
        description="Linear warm-up: '100 steps', '2 epochs' or a share such as '10%'.",
    )
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Floor of the rate, as a share of the peak."
    )
    floor: Literal["scale", "cut"] | None = Field(
        default=None,
        description="scale: the curve ends at the floor; cut: it heads for 0 and stops there.",
    )
    every: StepPeriod | None = Field(
        default=None,
        description="How often the rate moves: '1 step', or '1 epoch' for a staircase.",
    )
