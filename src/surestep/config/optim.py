"""Options of the optimizer, under torch's names.

`engine/optim/registry.py` says which option belongs to which optimizer, and its default.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.param_groups import Groups
from surestep.config.types import Count, NotNegative, Positive, Share, Whole

Name = Literal[
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "adamw8bit",
    "asgd",
    "lbfgs",
    "muon",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
    "sparse_adam",
]


def _one_or_two(value: object) -> object:
    """Read `(1e-8,)`, as a command line gives one number, and "none" for None."""
    if isinstance(value, (tuple, list)):
        values = [None if item == "none" else item for item in value]
        return values[0] if len(values) == 1 else tuple(values)
    return value


Eps = Annotated[NotNegative | tuple[NotNegative | None, NotNegative], BeforeValidator(_one_or_two)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Optim(ConfigGroup):
    """The optimizer.

    Example:
        >>> import surestep
        >>> surestep.Optim(name="adamw", lr=1e-3, groups=["head.* lr=1e-2"]).name
        'adamw'
    """

    prefix: ClassVar[str] = "optim."
    name: Name | NotSet = Field(
        default=NOT_SET,
        description="Optimizer; docs/optimizers.md says what each is for. A Task may bring "
        "its own instead.",
    )
    lr: Positive | NotSet = Field(default=NOT_SET, description="Peak learning rate.")
    weight_decay: NotNegative | NotSet = Field(
        default=NOT_SET,
        description="Weight decay; not applied to biases, normalization and embeddings.",
    )
    implementation: Literal["auto", "fused", "foreach", "for_loop"] | NotSet = Field(
        default=NOT_SET,
        description="fused: one kernel; foreach: one kernel per operation; for_loop: one "
        "tensor after another; auto: the first that torch supports.",
    )
    betas: tuple[Share, Share] | NotSet = Field(
        default=NOT_SET, description="Adam and its variants: decay rates of the two moments."
    )
    eps: Eps | NotSet = Field(
        default=NOT_SET,
        description="Term added to the denominator; Adafactor takes two values (the first may "
        "be none).",
    )
    momentum: Share | NotSet = Field(default=NOT_SET, description="SGD, RMSprop, Muon: momentum.")
    dampening: Annotated[float, Field(ge=0, le=1)] | NotSet = Field(
        default=NOT_SET,
        description="SGD: share by which a gradient is reduced before it is added to the momentum.",
    )
    nesterov: bool | NotSet = Field(
        default=NOT_SET, description="SGD, Muon: use Nesterov momentum."
    )
    amsgrad: bool | NotSet = Field(
        default=NOT_SET, description="Adam, AdamW: divide by the largest second moment so far."
    )
    decoupled_weight_decay: bool | NotSet = Field(
        default=NOT_SET, description="Adam, NAdam, RAdam: decouple weight decay, as AdamW does."
    )
    momentum_decay: NotNegative | NotSet = Field(
        default=NOT_SET, description="NAdam: rate at which the momentum grows with the steps."
    )
    alpha: NotNegative | NotSet = Field(
        default=NOT_SET,
        description="RMSprop: decay rate of the squared gradients. ASGD: power of the "
        "learning rate.",
    )
    centered: bool | NotSet = Field(
        default=NOT_SET, description="RMSprop: divide by the variance instead of the mean square."
    )
    rho: Share | NotSet = Field(
        default=NOT_SET, description="Adadelta: decay rate of the squared gradients."
    )
    lr_decay: NotNegative | NotSet = Field(
        default=NOT_SET,
        description="Adagrad: multiply the learning rate by 1 / (1 + steps * lr_decay).",
    )
    initial_accumulator_value: NotNegative | NotSet = Field(
        default=NOT_SET, description="Adagrad: initial value of the sum of squares."
    )
    lambd: NotNegative | NotSet = Field(default=NOT_SET, description="ASGD: decay of the weights.")
    t0: NotNegative | NotSet = Field(
        default=NOT_SET, description="ASGD: step at which averaging of the weights starts."
    )
    etas: tuple[Share, Positive] | NotSet = Field(
        default=NOT_SET, description="Rprop: factors that decrease and increase a step size."
    )
    step_sizes: tuple[Positive, Positive] | NotSet = Field(
        default=NOT_SET, description="Rprop: smallest and largest step size."
    )
    beta2_decay: Annotated[float, Field(le=0)] | NotSet = Field(
        default=NOT_SET, description="Adafactor: exponent of the decay of the squared gradients."
    )
    d: Annotated[float, Field(ge=1)] | NotSet = Field(
        default=NOT_SET,
        description="Adafactor: clip the root mean square of an update to this value.",
    )
    max_iter: Count | NotSet = Field(
        default=NOT_SET, description="L-BFGS: maximum number of iterations per step."
    )
    max_eval: Count | NotSet = Field(
        default=NOT_SET, description="L-BFGS: maximum number of evaluations of the batch per step."
    )
    tolerance_grad: NotNegative | NotSet = Field(
        default=NOT_SET, description="L-BFGS: end the step when no gradient is larger than this."
    )
    tolerance_change: NotNegative | NotSet = Field(
        default=NOT_SET,
        description="L-BFGS: end the step when loss and weights change by less than this.",
    )
    history_size: Count | NotSet = Field(
        default=NOT_SET, description="L-BFGS: number of past updates to keep."
    )
    line_search_fn: Literal["strong_wolfe"] | NotSet | None = Field(
        default=NOT_SET,
        description="L-BFGS: line search, by the strong Wolfe conditions, or none.",
    )
    ns_coefficients: tuple[Finite, Finite, Finite] | NotSet = Field(
        default=NOT_SET, description="Muon: coefficients of the Newton-Schulz iteration."
    )
    ns_steps: Annotated[Whole, Field(lt=100)] | NotSet = Field(
        default=NOT_SET, description="Muon: number of Newton-Schulz iterations."
    )
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | NotSet = Field(
        default=NOT_SET, description="Muon: how the learning rate depends on the shape of a matrix."
    )
    adamw_lr: Positive | NotSet = Field(
        default=NOT_SET,
        description="Muon, SparseAdam: peak learning rate of AdamW for the other parameters.",
    )
    min_8bit_size: Whole | NotSet = Field(
        default=NOT_SET, description="8-bit AdamW: tensors with fewer values keep 32-bit moments."
    )
    groups: Groups | NotSet = Field(
        default=NOT_SET,
        description="Learning rate, weight decay and freezing by name pattern: 'head.* "
        "lr=1e-3', 'type:LayerNorm decay=0', 'encoder.* freeze'; later groups "
        "win.",
    )
    layerwise_lr_decay: Annotated[float, Field(gt=0, le=1)] | NotSet | None = Field(
        default=NOT_SET,
        description="Learning rate of each layer divided by that of the layer above it.",
    )
