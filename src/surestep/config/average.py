"""Options of averaged weights."""

from typing import ClassVar, Literal

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.types import Positive, Share, StepPeriod, Warmup


class Average(ConfigGroup):
    """An average of the weights, which is evaluated instead of the weights."""

    prefix: ClassVar[str] = "average."
    kind: Literal["none", "ema", "swa"] | NotSet = Field(
        default=NOT_SET,
        description="ema: exponential moving average; swa: stochastic weight averaging; none.",
    )
    decay: Share | NotSet = Field(
        default=NOT_SET, description="EMA: share of the average that remains at each update."
    )
    warmup: bool | NotSet = Field(
        default=NOT_SET,
        description="EMA: start with a smaller decay, so that the initial weights fade quickly.",
    )
    start: Warmup | NotSet = Field(
        default=NOT_SET, description="When averaging starts: '1000 steps', '2 epochs' or '75%'."
    )
    every: StepPeriod | NotSet = Field(
        default=NOT_SET, description="How often the average is updated: '1 step', '1 epoch'."
    )
    buffers: Literal["copy", "average", "recompute"] | NotSet = Field(
        default=NOT_SET,
        description="Buffers of the averaged model: copy those of the model, average them, or "
        "recompute BatchNorm statistics from the training data.",
    )
    lr: Positive | NotSet = Field(
        default=NOT_SET, description="SWA: constant learning rate from average.start on."
    )
    anneal: Warmup | NotSet = Field(
        default=NOT_SET,
        description="SWA: how long the learning rate takes to reach average.lr, along a cosine.",
    )
