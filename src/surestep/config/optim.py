"""Options of the optimizer, under torch's names.

`engine/optim/registry.py` says which option belongs to which optimizer, and its default.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from surestep.base.plugins import OPTIMIZERS, plugin_names
from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import INITIAL, KERNELS, UPDATE, ResumeEffect, incompatible, option
from surestep.config.param_groups import Groups
from surestep.config.types import Count, NotNegative, Positive, Share, Whole

# Options that are not an optimizer's own.
OF_ALL = ("name", "lr", "weight_decay", "implementation", "groups", "layerwise_lr_decay")
BUILT_IN = (
    *("adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "adamw8bit", "asgd"),
    *("lbfgs", "muon", "nadam", "radam", "rmsprop", "rprop", "sgd", "sparse_adam"),
)
if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[(*BUILT_IN, *plugin_names(OPTIMIZERS, BUILT_IN))]


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
    resume: ClassVar[ResumeEffect] = UPDATE
    name: Name | NotSet = option(
        "Optimizer; docs/optimizers.md says what each is for. A Task may bring its own instead.",
        resume=incompatible("the state of one optimizer does not fit another"),
    )
    lr: Positive | NotSet = option("Peak learning rate.")
    weight_decay: NotNegative | NotSet = option(
        "Weight decay; not applied to biases, normalization and embeddings."
    )
    implementation: Literal["auto", "fused", "foreach", "for_loop"] | NotSet = option(
        "fused: one kernel; foreach: one kernel per operation; for_loop: one "
        "tensor after another; auto: the first that torch supports.",
        resume=KERNELS,
    )
    betas: tuple[Share, Share] | NotSet = option(
        "Adam and its variants: decay rates of the two moments."
    )
    eps: Eps | NotSet = option(
        "Term added to the denominator; Adafactor takes two values (the first may be none)."
    )
    momentum: Share | NotSet = option("SGD, RMSprop, Muon: momentum.")
    dampening: Annotated[float, Field(ge=0, le=1)] | NotSet = option(
        "SGD: share by which a gradient is reduced before it is added to the momentum."
    )
    nesterov: bool | NotSet = option("SGD, Muon: use Nesterov momentum.")
    amsgrad: bool | NotSet = option("Adam, AdamW: divide by the largest second moment so far.")
    decoupled_weight_decay: bool | NotSet = option(
        "Adam, NAdam, RAdam: decouple weight decay, as AdamW does."
    )
    momentum_decay: NotNegative | NotSet = option(
        "NAdam: rate at which the momentum grows with the steps."
    )
    alpha: NotNegative | NotSet = option(
        "RMSprop: decay rate of the squared gradients. ASGD: power of the learning rate."
    )
    centered: bool | NotSet = option("RMSprop: divide by the variance instead of the mean square.")
    rho: Share | NotSet = option("Adadelta: decay rate of the squared gradients.")
    lr_decay: NotNegative | NotSet = option(
        "Adagrad: multiply the learning rate by 1 / (1 + steps * lr_decay)."
    )
    initial_accumulator_value: NotNegative | NotSet = option(
        "Adagrad: initial value of the sum of squares.", resume=INITIAL
    )
    lambd: NotNegative | NotSet = option("ASGD: decay of the weights.")
    t0: NotNegative | NotSet = option("ASGD: step at which averaging of the weights starts.")
    etas: tuple[Share, Annotated[float, Field(gt=1)]] | NotSet = option(
        "Rprop: factors that decrease and increase a step size."
    )
    step_sizes: tuple[Positive, Positive] | NotSet = option(
        "Rprop: smallest and largest step size."
    )
    beta2_decay: Annotated[float, Field(le=0)] | NotSet = option(
        "Adafactor: exponent of the decay of the squared gradients."
    )
    d: Annotated[float, Field(ge=1)] | NotSet = option(
        "Adafactor: clip the root mean square of an update to this value."
    )
    max_iter: Count | NotSet = option("L-BFGS: maximum number of iterations per step.")
    max_eval: Count | NotSet = option(
        "L-BFGS: maximum number of evaluations of the batch per step."
    )
    tolerance_grad: NotNegative | NotSet = option(
        "L-BFGS: end the step when no gradient is larger than this."
    )
    tolerance_change: NotNegative | NotSet = option(
        "L-BFGS: end the step when loss and weights change by less than this."
    )
    history_size: Count | NotSet = option("L-BFGS: number of past updates to keep.")
    line_search_fn: Literal["strong_wolfe"] | NotSet | None = option(
        "L-BFGS: line search, by the strong Wolfe conditions, or none."
    )
    ns_coefficients: tuple[Finite, Finite, Finite] | NotSet = option(
        "Muon: coefficients of the Newton-Schulz iteration."
    )
    ns_steps: Annotated[Whole, Field(lt=100)] | NotSet = option(
        "Muon: number of Newton-Schulz iterations."
    )
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | NotSet = option(
        "Muon: how the learning rate depends on the shape of a matrix."
    )
    adamw_lr: Positive | NotSet = option(
        "Muon, SparseAdam: peak learning rate of AdamW for the other parameters."
    )
    min_8bit_size: Whole | NotSet = option(
        "8-bit AdamW: tensors with fewer values keep 32-bit moments.", resume=INITIAL
    )
    groups: Groups | NotSet = option(
        "Learning rate, weight decay and freezing by name pattern: 'head.* "
        "lr=1e-3', 'type:LayerNorm decay=0', 'encoder.* freeze'; later groups "
        "win.",
        default=((), "not set: all parameters have the same options"),
    )
    layerwise_lr_decay: Annotated[float, Field(gt=0, le=1)] | NotSet | None = option(
        "Each layer gets the learning rate of the layer above it times this factor.",
        default=(None, "not set: one learning rate for all layers"),
    )
