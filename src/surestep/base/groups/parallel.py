"""Options of many processes."""

from typing import ClassVar, Literal

from pydantic import Field

from surestep.base.groups.group import Group
from surestep.base.values import Positive


class Parallel(Group):
    """How several processes make one step."""

    prefix: ClassVar[str] = "parallel."
    kind: Literal["auto", "single", "ddp"] | None = Field(
        default=None, description="How processes share a step; auto: ddp where there are several."
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
    timeout_s: Positive | None = Field(
        default=None, description="Seconds that a rank waits for the others before it gives up."
    )
