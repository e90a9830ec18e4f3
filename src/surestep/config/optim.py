"""Options of the optimizer: those of all, and those that only some have.

Which option belongs to which optimizer, and what it is where nothing is said, stands in
`engine/optim/registry.py`. The names are torch's.
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
        values = [None if each == "none" else each for each in value]
        return values[0] if len(values) == 1 else tuple(values)
    return value


Eps = Annotated[NotNegative | tuple[NotNegative | None, NotNegative], BeforeValidator(_one_or_two)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Optim(ConfigGroup):
    """The optimizer."""

    prefix: ClassVar[str] = "optim."
    name: Name | NotSet = Field(
        default=NOT_SET,
        description="Optimizer; docs/optimizers.md says what for. A Task may bring another one.",
    )
    lr: Positive | NotSet = Field(default=NOT_SET, description="Peak learning rate.")
    weight_decay: NotNegative | NotSet = Field(
        default=NOT_SET,
        description="Weight decay; biases, normalisation and embeddings are kept out.",
    )
    implementation: Literal["auto", "fused", "foreach", "for_loop"] | NotSet = Field(
        default=NOT_SET,
        description="fused: one kernel; foreach: a kernel for each operation; plain: one tensor "
        "after another; auto: the first that torch has.",
    )
    betas: tuple[Share, Share] | NotSet = Field(
        default=NOT_SET, description="Adam and its kin: decay rates of the two moments."
    )
    eps: Eps | NotSet = Field(
        default=NOT_SET,
        description="Added to a denominator; Adafactor takes two (the first may be none).",
    )
    momentum: Share | NotSet = Field(default=NOT_SET, description="SGD, RMSprop, Muon: momentum.")
    dampening: Annotated[float, Field(ge=0, le=1)] | NotSet = Field(
        default=NOT_SET, description="SGD: how much less of a gradient goes into the momentum."
    )
    nesterov: bool | NotSet = Field(default=NOT_SET, description="SGD, Muon: Nesterov momentum.")
    amsgrad: bool | NotSet = Field(
        default=NOT_SET, description="Adam, AdamW: divide by the largest second moment so far."
    )
    decoupled_weight_decay: bool | NotSet = Field(
        default=NOT_SET, description="Adam, NAdam, RAdam: decay as AdamW does."
    )
    momentum_decay: NotNegative | NotSet = Field(
        default=NOT_SET, description="NAdam: how the momentum grows with the steps."
    )
    alpha: NotNegative | NotSet = Field(
        default=NOT_SET, description="RMSprop: decay rate of the squares. ASGD: power of the rate."
    )
    centered: bool | NotSet = Field(
        default=NOT_SET, description="RMSprop: divide by the variance, not by the squares."
    )
    rho: Share | NotSet = Field(default=NOT_SET, description="Adadelta: decay rate of the squares.")
    lr_decay: NotNegative | NotSet = Field(
        default=NOT_SET, description="Adagrad: the rate falls as 1 / (1 + steps * lr_decay)."
    )
    initial_accumulator_value: NotNegative | NotSet = Field(
        default=NOT_SET, description="Adagrad: what the sum of squares starts from."
    )
    lambd: NotNegative | NotSet = Field(default=NOT_SET, description="ASGD: decay of the weights.")
    t0: NotNegative | NotSet = Field(
        default=NOT_SET, description="ASGD: the step from which weights are averaged."
    )
    etas: tuple[Share, Positive] | NotSet = Field(
        default=NOT_SET, description="Rprop: factors of a step size, downward and upward."
    )
    step_sizes: tuple[Positive, Positive] | NotSet = Field(
        default=NOT_SET, description="Rprop: the smallest and the largest step size."
    )
    beta2_decay: Annotated[float, Field(le=0)] | NotSet = Field(
        default=NOT_SET, description="Adafactor: the power by which squares are forgotten."
    )
    d: Annotated[float, Field(ge=1)] | NotSet = Field(
        default=NOT_SET, description="Adafactor: updates are clipped to this root mean square."
    )
    max_iter: Count | NotSet = Field(
        default=NOT_SET, description="L-BFGS: moves in one step, at most."
    )
    max_eval: Count | NotSet = Field(
        default=NOT_SET, description="L-BFGS: evaluations of the batch in one step, at most."
    )
    tolerance_grad: NotNegative | NotSet = Field(
        default=NOT_SET, description="L-BFGS: a step ends where no gradient is larger."
    )
    tolerance_change: NotNegative | NotSet = Field(
        default=NOT_SET, description="L-BFGS: a step ends where loss and weights move less."
    )
    history_size: Count | NotSet = Field(
        default=NOT_SET, description="L-BFGS: how many moves are remembered."
    )
    line_search_fn: Literal["strong_wolfe"] | NotSet | None = Field(
        default=NOT_SET,
        description="L-BFGS: search along each direction, by the strong Wolfe rule.",
    )
    ns_coefficients: tuple[Finite, Finite, Finite] | NotSet = Field(
        default=NOT_SET, description="Muon: coefficients of the Newton-Schulz iteration."
    )
    ns_steps: Annotated[Whole, Field(lt=100)] | NotSet = Field(
        default=NOT_SET, description="Muon: Newton-Schulz iterations."
    )
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | NotSet = Field(
        default=NOT_SET, description="Muon: how the rate goes by the shape of a matrix."
    )
    adamw_lr: Positive | NotSet = Field(
        default=NOT_SET, description="Muon, SparseAdam: peak rate of the AdamW that moves the rest."
    )
    min_8bit_size: Whole | NotSet = Field(
        default=NOT_SET, description="8-bit AdamW: smaller tensors keep moments of 32 bits."
    )
    groups: Groups | NotSet = Field(
        default=NOT_SET,
        description="Rates, decay and freezing of parts, a pattern each: 'head.* lr=1e-3', "
        "'type:LayerNorm decay=0', 'encoder.* freeze'. The later one wins.",
    )
    layerwise_lr_decay: Annotated[float, Field(gt=0, le=1)] | NotSet | None = Field(
        default=NOT_SET, description="Rate of each layer over that of the layer after it."
    )
