"""Options of averaged weights."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import ON, ResumeEffect, blocked, incompatible, option
from surestep.config.types import Positive, Share, StepPeriod, Warmup


class Average(ConfigGroup):
    """An average of the weights, which is evaluated instead of the weights."""

    prefix: ClassVar[str] = "average."
    requires: ClassVar[Mapping[str, Any]] = {"average.kind": ("ema", "swa")}
    resume: ClassVar[ResumeEffect] = blocked("the average so far was computed differently")
    kind: Literal["none", "ema", "swa"] | NotSet = option(
        "ema: exponential moving average; swa: stochastic weight averaging; none.",
        default=("none", "not set: the last weights are the model"),
    )
    decay: Share | NotSet = option(
        "EMA: share of the average that remains at each update.", requires={"average.kind": "ema"}
    )
    warmup: bool | NotSet = option(
        "EMA: start with a smaller decay, so that the initial weights fade quickly.",
        requires={"average.kind": "ema"},
    )
    start: Warmup | NotSet = option("When averaging starts: '1000 steps', '2 epochs' or '75%'.")
    every: StepPeriod | NotSet = option("How often the average is updated: '1 step', '1 epoch'.")
    buffers: Literal["copy", "average", "recompute"] | NotSet = option(
        "Buffers of the averaged model: copy those of the model, average them, or "
        "recompute BatchNorm statistics from the training data.",
        resume=incompatible("the average so far holds other buffers"),
    )
    lr: Positive | NotSet = option(
        "SWA: constant learning rate from average.start on.",
        requires={"average.kind": "swa"},
        default=(None, "not set: the schedule's learning rate"),
    )
    anneal: Warmup | NotSet = option(
        "SWA: how long the learning rate takes to reach average.lr, along a cosine.",
        requires={"average.kind": "swa", "average.lr": ON},
    )
