"""Options of averaging the weights over the run."""

from typing import ClassVar, Literal

from pydantic import Field

from surestep.base.groups.group import Group
from surestep.base.values import Positive, Share, StepPeriod, Warmup


class Average(Group):
    """An average of the weights, evaluated in their place."""

    prefix: ClassVar[str] = "average."
    kind: Literal["none", "ema", "swa"] | None = Field(
        default=None, description="ema: exponential moving average; swa: stochastic weight average."
    )
    decay: Share | None = Field(
        default=None, description="EMA: what stays of the average at each update."
    )
    warmup: bool | None = Field(
        default=None, description="EMA: begin with a smaller decay, so that first weights fade."
    )
    start: Warmup | None = Field(
        default=None, description="When averaging begins: '1000 steps', '2 epochs' or '75%'."
    )
    every: StepPeriod | None = Field(
        default=None, description="How often the average takes the weights in: '1 step'."
    )
    buffers: Literal["copy", "average", "recompute"] | None = Field(
        default=None,
        description="Buffers of the average: the model's, averaged too, or BatchNorm's statistics "
        "computed anew from the training data.",
    )
    lr: Positive | None = Field(
        default=None, description="SWA: constant learning rate from average.start on."
    )
    anneal: Warmup | None = Field(
        default=None, description="SWA: how long the rate takes to reach average.lr, by a cosine."
    )
