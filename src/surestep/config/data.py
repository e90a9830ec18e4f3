"""Options of data loading."""

from typing import ClassVar

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import BATCHES, LOADING, ON, option
from surestep.config.types import (
    Count,
    Whole,
)


class Data(ConfigGroup):
    """How data is loaded."""

    prefix: ClassVar[str] = "data."
    num_workers: Whole | NotSet = option("Number of processes that load data.", resume=LOADING)
    pin_memory: bool | NotSet = option(
        "Load batches into page-locked host memory, for faster copies to the GPU.",
        resume=LOADING,
        requires={"device": "cuda"},
    )
    persistent_workers: bool | NotSet = option(
        "Keep workers alive between epochs.", resume=LOADING, requires={"data.num_workers": ON}
    )
    prefetch_factor: Count | NotSet = option(
        "Micro-batches that each worker loads ahead.",
        resume=LOADING,
        requires={"data.num_workers": ON},
    )
    drop_last: bool | NotSet = option(
        "Drop the last batch of an epoch if it is smaller.", resume=BATCHES
    )
    shuffle: bool | NotSet = option(
        "Read the samples in a new random order each epoch.", resume=BATCHES
    )
    shuffle_buffer: Count | NotSet = option(
        "Number of samples in the buffer from which a stream is shuffled.", resume=BATCHES
    )
