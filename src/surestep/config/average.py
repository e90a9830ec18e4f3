"""Options of averaging the weights over the run."""

from typing import ClassVar, Literal

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.types import Positive, Share, StepPeriod, Warmup


class Average(ConfigGroup):
    """An average of the weights, evaluated in their place."""

    prefix: ClassVar[str] = "average."
    kind: Literal["none", "ema", "swa"] | NotSet = Field(
        default=NOT_SET,
        description="ema: exponential moving average; swa: stochastic weight average.",
    )
    decay: Share | NotSet = Field(
        default=NOT_SET, description="EMA: what stays of the average at each update."
    )
    warmup: bool | NotSet = Field(
        default=NOT_SET, description="EMA: begin with a smaller decay, so that first weights fade."
    )
    start: Warmup | NotSet = Field(
        default=NOT_SET, description="When averaging begins: '1000 steps', '2 epochs' or '75%'."
    )
    every: StepPeriod | NotSet = Field(
        default=NOT_SET, description="How often the average takes the weights in: '1 step'."
    )
    buffers: Literal["copy", "average", "recompute"] | NotSet = Field(
        default=NOT_SET,
        description="Buffers of the average: the model's, averaged too, or BatchNorm's statistics "
        "computed anew from the training data.",
    )
    lr: Positive | NotSet = Field(
        default=NOT_SET, description="SWA: constant learning rate from average.start on."
    )
    anneal: Warmup | NotSet = Field(
        default=NOT_SET,
        description="SWA: how long the rate takes to reach average.lr, by a cosine.",
    )
