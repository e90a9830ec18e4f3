"""Options of evaluation and early stopping."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import (
    ENDING,
    ON,
    VAL_DATA,
    ResumeEffect,
    blocked,
    not_bitwise,
    option,
    safe,
)
from surestep.config.types import Count, NotNegative, Period, StepPoint

EVALUATION = safe("evaluations change no weight")


class Validation(ConfigGroup):
    """When to evaluate, and which metric decides what is best."""

    prefix: ClassVar[str] = "validation."
    requires: ClassVar[Mapping[str, Any]] = {VAL_DATA: ON}
    every: Period | NotSet | None = option(
        "How often to evaluate: '1 epoch', '500 steps'.",
        resume=EVALUATION,
        default=("1 epoch", "once through the data"),
    )
    on_start: bool | NotSet = option(
        "Also evaluate before the first step.",
        resume=EVALUATION,
        default=(False, "the first evaluation is after validation.every"),
    )
    batch_size: Count | NotSet = option(
        "Samples per forward pass of an evaluation.",
        resume=not_bitwise("metrics are summed in different batches"),
    )
    weights: Literal["average", "raw", "both"] | NotSet = option(
        "Which weights to evaluate if average.kind is set; both reports the "
        "average as 'val/...' and the raw weights as 'val_raw/...'.",
        resume=blocked("the best metric so far was measured on other weights"),
    )
    metric: str | NotSet = option(
        "Metric that decides which checkpoint is best: 'loss', a metric's name, or 'set/metric'.",
        resume=blocked("the best checkpoint so far was chosen by another metric"),
    )
    mode: Literal["min", "max"] | NotSet = option(
        "Whether a smaller or a larger metric is better.",
        resume=blocked("the best checkpoint so far was chosen in the other direction"),
    )


class EarlyStop(ConfigGroup):
    """When to stop because the metric no longer improves."""

    prefix: ClassVar[str] = "early_stop."
    resume: ClassVar[ResumeEffect] = ENDING
    patience: Count | NotSet | None = option(
        "Stop after this many evaluations in a row without improvement.",
        requires={VAL_DATA: ON},
        default=(None, "not set: no early stopping"),
    )
    start: StepPoint | NotSet | None = option(
        "Ignore evaluations before this point: '5 epochs', '1000 steps'.",
        requires={"early_stop.patience": ON},
        default=(None, "every evaluation counts"),
    )
    min_delta: NotNegative | NotSet = option(
        "Smallest change that counts as an improvement.",
        requires={"early_stop.patience": ON},
        default=(0.0, "any improvement counts"),
    )
