"""Options of several processes."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.types import BlockChoice, Count, Positive, StepPeriod, TableOrFile

Shard = Literal[
    "full",
    "grad_op",
    "hybrid",
    "none",
    "FULL_SHARD",
    "SHARD_GRAD_OP",
    "HYBRID_SHARD",
    "NO_SHARD",
]


class Parallel(ConfigGroup):
    """The strategy by which several processes train together."""

    prefix: ClassVar[str] = "parallel."
    strategy: Literal["auto", "single", "ddp", "fsdp", "deepspeed", "accelerate"] | NotSet = Field(
        default=NOT_SET,
        description="Strategy of several processes; auto: accelerate if `accelerate launch` "
        "started them, otherwise ddp.",
    )
    shard: Shard | NotSet = Field(
        default=NOT_SET, description="fsdp: what to shard over the ranks; full shards everything."
    )
    shard_size: Count | NotSet = Field(
        default=NOT_SET,
        description="fsdp: ranks per shard group of hybrid; the default is those of one machine.",
    )
    wrap_policy: BlockChoice | NotSet = Field(
        default=NOT_SET,
        description="fsdp: modules to gather one at a time: 'class NAME', 'size 1e6', 'name "
        "PATTERN'.",
    )
    meta_init: bool | NotSet = Field(
        default=NOT_SET, description="fsdp: initialize the model's values on rank 0 only."
    )
    offload: Literal["off", "optimizer", "all"] | NotSet = Field(
        default=NOT_SET,
        description="What to keep in host memory: the optimizer state, or all (parameters too).",
    )
    find_unused_parameters: bool | NotSet = Field(
        default=NOT_SET,
        description="ddp: allow parameters without a gradient in some steps.",
    )
    static_graph: bool | NotSet = Field(
        default=NOT_SET, description="ddp: declare that every step uses the same parameters."
    )
    sync_batchnorm: bool | NotSet = Field(
        default=NOT_SET, description="Compute BatchNorm statistics over the samples of all ranks."
    )
    zero_stage: Annotated[int, Field(ge=0, le=3)] | NotSet = Field(
        default=NOT_SET,
        description="deepspeed: what to shard: 1 the optimizer state, 2 also gradients, 3 "
        "also parameters.",
    )
    deepspeed: TableOrFile | NotSet = Field(
        default=NOT_SET,
        description="deepspeed: additional DeepSpeed options, as JSON or a path to a JSON file.",
    )
    nccl_debug: bool | NotSet = Field(
        default=NOT_SET,
        description="Log NCCL's debug output and record the last collectives (GPUs).",
    )
    replica_check_every: StepPeriod | NotSet | None = Field(
        default=NOT_SET,
        description="How often to compare the replicas' parameters, at log points: '1 epoch'.",
    )
    timeout_s: Positive | NotSet = Field(
        default=NOT_SET,
        description="Seconds that a rank waits for the others after the first step.",
    )
    start_timeout_s: Positive | NotSet = Field(
        default=NOT_SET,
        description="Seconds that a rank waits for the others until the first step is done, "
        "and while one rank saves.",
    )
