"""Options of the loss scale."""

from typing import Annotated, ClassVar

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.types import (
    Count,
)


class Scaler(ConfigGroup):
    """Loss scaling under fp16, with the option names of torch.amp.GradScaler."""

    prefix: ClassVar[str] = "scaler."
    init_scale: Annotated[float, Field(ge=1)] | NotSet = Field(
        default=NOT_SET, description="fp16: initial loss scale."
    )
    growth_factor: Annotated[float, Field(gt=1)] | NotSet = Field(
        default=NOT_SET,
        description="fp16: factor on the scale after growth_interval steps without overflow.",
    )
    growth_interval: Count | NotSet = Field(
        default=NOT_SET, description="fp16: steps in a row without overflow before the scale grows."
    )
    backoff_factor: Annotated[float, Field(gt=0, lt=1)] | NotSet = Field(
        default=NOT_SET, description="fp16: factor on the scale after an overflow."
    )
