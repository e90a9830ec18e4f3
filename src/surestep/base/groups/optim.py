"""Options of the optimizer."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from surestep.base.groups.group import Group
from surestep.base.groups.parameters import Groups
from surestep.base.values import (
    NotNegative,
    Positive,
    Share,
)


class Optim(Group):
    """The optimizer."""

    prefix: ClassVar[str] = "optim."
    name: Literal["adamw", "sgd"] | None = Field(
        default=None, description="Optimizer: adamw or sgd. A Task may bring another one."
    )
    lr: Positive | None = Field(default=None, description="Peak learning rate.")
    weight_decay: NotNegative | None = Field(
        default=None, description="Weight decay; biases, normalisation and embeddings are kept out."
    )
    betas: tuple[Share, Share] | None = Field(
        default=None, description="AdamW: decay rates of the two moments."
    )
    eps: Positive | None = Field(default=None, description="AdamW: added to the denominator.")
    momentum: Share | None = Field(default=None, description="SGD: momentum.")
    nesterov: bool | None = Field(default=None, description="SGD: Nesterov momentum.")
    groups: Groups | None = Field(
        default=None,
        description="Rates, decay and freezing of parts, a pattern each: 'head.* lr=1e-3', "
        "'type:LayerNorm decay=0', 'encoder.* freeze'. The later one wins.",
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Rate of each layer over that of the layer after it."
    )
