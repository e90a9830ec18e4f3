"""Options of many processes."""

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
    """How several processes make one step."""

    prefix: ClassVar[str] = "parallel."
    strategy: Literal["auto", "single", "ddp", "fsdp", "deepspeed", "accelerate"] | NotSet = Field(
        default=NOT_SET,
        description="How processes share a step; auto: accelerate where it started them, else ddp.",
    )
    shard: Shard | NotSet = Field(
        default=NOT_SET, description="What is cut over the ranks (fsdp): full is everything."
    )
    shard_size: Count | NotSet = Field(
        default=NOT_SET, description="Ranks over which hybrid cuts; those of a machine."
    )
    wrap_policy: BlockChoice | NotSet = Field(
        default=NOT_SET,
        description="Modules gathered at a time: 'class NAME', 'size 1e6', 'name PATTERN' (fsdp).",
    )
    meta_init: bool | NotSet = Field(
        default=NOT_SET, description="Let only the first process build the model's values (fsdp)."
    )
    offload: Literal["off", "optimizer", "all"] | NotSet = Field(
        default=NOT_SET, description="What is kept in host memory; all: parameters too."
    )
    find_unused_parameters: bool | NotSet = Field(
        default=NOT_SET,
        description="Let some parameters be without a gradient in some steps (ddp).",
    )
    static_graph: bool | NotSet = Field(
        default=NOT_SET, description="Promise that each step uses the same parameters (ddp)."
    )
    sync_batchnorm: bool | NotSet = Field(
        default=NOT_SET, description="Take BatchNorm's statistics over the samples of all ranks."
    )
    zero_stage: Annotated[int, Field(ge=0, le=3)] | NotSet = Field(
        default=NOT_SET,
        description="What is shared out (deepspeed): 1 the optimizer, 2 gradients, 3 parameters.",
    )
    deepspeed: TableOrFile | NotSet = Field(
        default=NOT_SET,
        description="Keys of DeepSpeed's own: its JSON, or the file that holds it (deepspeed).",
    )
    nccl_debug: bool | NotSet = Field(
        default=NOT_SET,
        description="Let NCCL tell what it does, and torch record the last collectives (GPUs).",
    )
    replica_check_every: StepPeriod | NotSet | None = Field(
        default=NOT_SET,
        description="How often copies of the parameters are compared, at log points: '1 epoch'.",
    )
    timeout_s: Positive | NotSet = Field(
        default=NOT_SET,
        description="Seconds that a rank waits for the others, after the first step.",
    )
    start_timeout_s: Positive | NotSet = Field(
        default=NOT_SET,
        description="The same until the first step is done, and while one rank saves.",
    )
