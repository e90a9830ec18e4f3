"""Options of evaluation and early stopping."""

from typing import ClassVar, Literal

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.types import Count, NotNegative, Period, StepPoint


class Validation(ConfigGroup):
    """When to evaluate, and which metric decides what is best."""

    prefix: ClassVar[str] = "validation."
    every: Period | NotSet | None = Field(
        default=NOT_SET, description="How often to evaluate: '1 epoch', '500 steps'."
    )
    on_start: bool | NotSet = Field(
        default=NOT_SET, description="Also evaluate before the first step."
    )
    batch_size: Count | NotSet = Field(
        default=NOT_SET, description="Samples per forward pass of an evaluation."
    )
    weights: Literal["average", "raw", "both"] | NotSet = Field(
        default=NOT_SET,
        description="Which weights to evaluate if average.kind is set; both reports the "
        "average as 'val/...' and the raw weights as 'val_raw/...'.",
    )
    metric: str | NotSet = Field(
        default=NOT_SET,
        description="Metric that decides which checkpoint is best: 'loss', a metric's name, "
        "or 'set/metric'.",
    )
    mode: Literal["min", "max"] | NotSet = Field(
        default=NOT_SET, description="Whether a smaller or a larger metric is better."
    )


class EarlyStop(ConfigGroup):
    """When to stop because the metric no longer improves."""

    prefix: ClassVar[str] = "early_stop."
    patience: Count | NotSet | None = Field(
        default=NOT_SET,
        description="Stop after this many evaluations in a row without improvement.",
    )
    start: StepPoint | NotSet | None = Field(
        default=NOT_SET,
        description="Ignore evaluations before this point: '5 epochs', '1000 steps'.",
    )
    min_delta: NotNegative | NotSet = Field(
        default=NOT_SET, description="Smallest change that counts as an improvement."
    )
