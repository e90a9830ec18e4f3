"""Options of many processes."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from surestep.base.groups.group import Group
from surestep.base.values import BlockChoice, Count, Positive, StepPeriod, TableOrFile

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


class Parallel(Group):
    """How several processes make one step."""

    prefix: ClassVar[str] = "parallel."
    kind: Literal["auto", "single", "ddp", "fsdp", "deepspeed", "accelerate"] | None = Field(
        default=None,
        description="How processes share a step; auto: accelerate where it started them, else ddp.",
    )
    shard: Shard | None = Field(
        default=None, description="What is cut over the ranks (fsdp): full is everything."
    )
    shard_size: Count | None = Field(
        default=None, description="Ranks over which hybrid cuts; those of a machine."
    )
    blocks: BlockChoice | None = Field(
        default=None,
        description="Modules gathered at a time: 'class NAME', 'size 1e6', 'name PATTERN' (fsdp).",
    )
    meta_start: bool | None = Field(
        default=None, description="Let only the first process build the model's values (fsdp)."
    )
    offload: Literal["off", "optimizer", "all"] | None = Field(
        default=None, description="What is kept in host memory; all: parameters too."
    )
    find_unused_parameters: bool | None = Field(
        default=None, description="Let some parameters be without a gradient in some steps (ddp)."
    )
    static_graph: bool | None = Field(
        default=None, description="Promise that each step uses the same parameters (ddp)."
    )
    sync_batchnorm: bool | None = Field(
        default=None, description="Take BatchNorm's statistics over the samples of all ranks."
    )
    zero: Annotated[int, Field(ge=0, le=3)] | None = Field(
        default=None,
        description="What is shared out (deepspeed): 1 the optimizer, 2 gradients, 3 parameters.",
    )
    deepspeed: TableOrFile | None = Field(
        default=None,
        description="Keys of DeepSpeed's own: its JSON, or the file that holds it (deepspeed).",
    )
    nccl_debug: bool | None = Field(
        default=None,
        description="Let NCCL tell what it does, and torch record the last collectives (GPUs).",
    )
    check_every: StepPeriod | None = Field(
        default=None,
        description="How often copies of the parameters are compared, at log points: '1 epoch'.",
    )
    timeout_s: Positive | None = Field(
        default=None, description="Seconds that a rank waits for the others, after the first step."
    )
    start_timeout_s: Positive | None = Field(
        default=None, description="The same until the first step is done, and while one rank saves."
    )
