"""Options of several processes.

The class of a strategy, in `engine/parallel/`, has the names of the options that it takes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from surestep.base.plugins import STRATEGIES, plugin_names
from surestep.config.annotations import Flag, Interval, Number, Off, Option, Word
from surestep.config.group import ConfigGroup
from surestep.config.option import (
    KERNELS,
    MODEL_FUNCTION,
    ON,
    OUR_STEP,
    PROCESSES,
    ResumeEffect,
    blocked,
    not_bitwise,
    option,
    safe,
)
from surestep.config.types import BlockChoice, Count, Positive, StepPeriod, TableOrFile

SUMMATION = not_bitwise("gradients are summed in a different order")
WAITING = safe("it sets how long a rank waits for the others")
DDP = {PROCESSES: ON, OUR_STEP: ON}


if TYPE_CHECKING:
    StrategyName = str
else:
    BUILT_IN = ("auto", "single", "ddp", "fsdp", "deepspeed", "accelerate")
    StrategyName = Literal[(*BUILT_IN, *plugin_names(STRATEGIES, BUILT_IN))]


class Parallel(ConfigGroup):
    """The strategy by which several processes train together."""

    prefix: ClassVar[str] = "parallel."
    resume: ClassVar[ResumeEffect] = not_bitwise(
        "sums and dropout are computed over other shards of the batch"
    )
    strategy: Word[StrategyName] = option(
        "Strategy of several processes; auto: accelerate if `accelerate launch` "
        "started them, otherwise ddp."
    )
    shard: Option[Literal["full", "grad_op", "hybrid"], str | int] = option(
        "fsdp: what to shard over the ranks; full shards everything.",
        requires={PROCESSES: ON},
    )
    shard_size: Number[Count] = option(
        "fsdp: ranks per shard group of hybrid; the default is those of one machine.",
        requires={"parallel.shard": "hybrid"},
    )
    wrap_policy: Word[BlockChoice] = option(
        "fsdp: modules to gather one at a time: 'class NAME', 'size 1e6', 'name PATTERN'.",
    )
    meta_init: Flag = option(
        "fsdp: initialize the model's values on rank 0 only.",
        requires={MODEL_FUNCTION: ON},
        default=(False, "each process builds the full model on the host"),
    )
    offload: Option[Literal["off", "optimizer", "all"], Off] = option(
        "What to keep in host memory: the optimizer state, or all (parameters too).",
        resume=KERNELS,
        default=("off", "parameters and optimizer state stay on the device"),
    )
    find_unused_parameters: Flag = option(
        "ddp: allow parameters without a gradient in some steps.",
        resume=SUMMATION,
        requires=DDP,
        default=(False, "a parameter without a gradient is an error"),
    )
    static_graph: Flag = option(
        "ddp: declare that every step uses the same parameters.",
        resume=SUMMATION,
        requires=DDP,
        default=(False, "not set: the graph may change at any step"),
        excludes=("parallel.find_unused_parameters",),
    )
    sync_batchnorm: Flag = option(
        "Compute BatchNorm statistics over the samples of all ranks.",
        resume=blocked("BatchNorm would compute its statistics over other samples"),
        requires={PROCESSES: ON, "device": "cuda"},
        default=(False, "each rank computes statistics of its own samples"),
    )
    zero_stage: Number[Annotated[int, Field(ge=0, le=3)]] = option(
        "deepspeed: what to shard: 1 the optimizer state, 2 also gradients, 3 also parameters.",
    )
    deepspeed: Option[TableOrFile, Path | Mapping[str, Any]] = option(
        "deepspeed: additional DeepSpeed options, as JSON or a path to a JSON file.",
    )
    replica_check_every: Interval[StepPeriod | None] = option(
        "How often to compare the replicas' parameters, at log points: '1 epoch'.",
        resume=safe("it compares weights and changes none"),
        requires={PROCESSES: ON},
    )
    timeout_s: Number[Positive] = option(
        "Seconds that a rank waits for the others after the first step.",
        resume=WAITING,
        default=(300.0, "a rank that is late by more than this has probably hung"),
    )
    start_timeout_s: Number[Positive] = option(
        "Seconds that a rank waits for the others until the first step is done, "
        "and while one rank saves.",
        resume=WAITING,
    )
