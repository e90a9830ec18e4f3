"""Options of the loss scale."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import INITIAL, ResumeEffect, blocked, option
from surestep.config.types import (
    Count,
)


class Scaler(ConfigGroup):
    """Loss scaling under fp16, with the option names of torch.amp.GradScaler."""

    prefix: ClassVar[str] = "scaler."
    requires: ClassVar[Mapping[str, Any]] = {"precision": "fp16"}
    resume: ClassVar[ResumeEffect] = blocked("the loss scale would change differently than so far")
    init_scale: Annotated[float, Field(ge=1)] | NotSet = option(
        "fp16: initial loss scale.", default=(65536.0, "torch's default"), resume=INITIAL
    )
    growth_factor: Annotated[float, Field(gt=1)] | NotSet = option(
        "fp16: factor on the scale after growth_interval steps without overflow.",
        default=(2.0, "torch's default"),
    )
    growth_interval: Count | NotSet = option(
        "fp16: steps in a row without overflow before the scale grows.",
        default=(2000, "torch's default"),
    )
    backoff_factor: Annotated[float, Field(gt=0, lt=1)] | NotSet = option(
        "fp16: factor on the scale after an overflow.", default=(0.5, "torch's default")
    )
