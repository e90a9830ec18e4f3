"""Options of data loading."""

from typing import ClassVar

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.types import (
    Count,
    Whole,
)


class Data(ConfigGroup):
    """How data is loaded."""

    prefix: ClassVar[str] = "data."
    num_workers: Whole | NotSet = Field(
        default=NOT_SET, description="Number of processes that load data."
    )
    pin_memory: bool | NotSet = Field(
        default=NOT_SET,
        description="Load batches into page-locked host memory, for faster copies to the GPU.",
    )
    persistent_workers: bool | NotSet = Field(
        default=NOT_SET, description="Keep workers alive between epochs."
    )
    prefetch_factor: Count | NotSet = Field(
        default=NOT_SET, description="Micro-batches that each worker loads ahead."
    )
    drop_last: bool | NotSet = Field(
        default=NOT_SET, description="Drop the last batch of an epoch if it is smaller."
    )
    shuffle: bool | NotSet = Field(
        default=NOT_SET, description="Read the samples in a new random order each epoch."
    )
    shuffle_buffer: Count | NotSet = Field(
        default=NOT_SET,
        description="Number of samples in the buffer from which a stream is shuffled.",
    )
