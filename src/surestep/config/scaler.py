"""Options of the loss scale."""

from typing import Annotated, ClassVar

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.types import (
    Count,
)


class Scaler(ConfigGroup):
    """Loss scaling under fp16 (torch.amp.GradScaler's words)."""

    prefix: ClassVar[str] = "scaler."
    init_scale: Annotated[float, Field(ge=1)] | NotSet = Field(
        default=NOT_SET, description="fp16: first loss scale."
    )
    growth_factor: Annotated[float, Field(gt=1)] | NotSet = Field(
        default=NOT_SET,
        description="fp16: what the scale grows by after growth_interval good steps.",
    )
    growth_interval: Count | NotSet = Field(
        default=NOT_SET, description="fp16: good steps in a row before the scale grows."
    )
    backoff_factor: Annotated[float, Field(gt=0, lt=1)] | NotSet = Field(
        default=NOT_SET, description="fp16: what the scale is multiplied by after an overflow."
    )
