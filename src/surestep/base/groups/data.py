"""Options of how data is loaded."""

from typing import ClassVar

from pydantic import Field

from surestep.base.groups.group import Group
from surestep.base.values import (
    Count,
    Whole,
)


class Data(Group):
    """How data is loaded."""

    prefix: ClassVar[str] = "data."
    num_workers: Whole | None = Field(default=None, description="Processes that load data.")
    pin_memory: bool | None = Field(default=None, description="Load into page-locked memory.")
    persistent_workers: bool | None = Field(
        default=None, description="Keep the workers alive between epochs."
    )
    prefetch_factor: Count | None = Field(
        default=None, description="Micro-batches that each worker loads ahead."
    )
    drop_last: bool | None = Field(
        default=None, description="Drop the last batch of an epoch where it is smaller."
    )
    shuffle: bool | None = Field(default=None, description="Train in a new order each epoch.")
    shuffle_buffer: Count | None = Field(
        default=None,
        description="Samples of a stream that wait in a buffer, from which the next is drawn.",
    )
