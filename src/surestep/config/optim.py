"""Options of the optimizer, under torch's names.

`engine/optim/registry.py` says which option belongs to which optimizer, and its default.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from surestep.base.plugins import OPTIMIZERS, plugin_names
from surestep.config.annotations import Flag, Number, Off, Option, Real, Several, Word
from surestep.config.group import ConfigGroup
from surestep.config.option import INITIAL, KERNELS, UPDATE, ResumeEffect, incompatible, option
from surestep.config.param_groups import AnyParamGroup, Groups
from surestep.config.types import Count, NotNegative, Positive, Share, Whole

FIND = "find"  # the value of optim.lr for which the rate is measured before step 1
FOUND = "found by a range test and short trainings"  # the reason for the rate then
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
    name: Option[Name, type] = option(
        "Optimizer; `surestep docs optimizers` explains them. A Task may bring its own instead.",
        resume=incompatible("the state of one optimizer does not fit another"),
    )
    lr: Number[Positive | Literal["find"]] = option("Peak learning rate; find: measured first.")
    weight_decay: Number[NotNegative] = option(
        "Weight decay; not applied to biases, normalization and embeddings."
    )
    implementation: Word[Literal["auto", "fused", "foreach", "for_loop"]] = option(
        "fused: one kernel; foreach: one kernel per operation; for_loop: one "
        "tensor after another; auto: the first that torch supports.",
        resume=KERNELS,
    )
    betas: Several[tuple[Share, Share]] = option(
        "Adam and its variants: decay rates of the two moments."
    )
    eps: Option[Eps, Real | Sequence[float | None]] = option(
        "Term added to the denominator; Adafactor takes two values (the first may be none)."
    )
    momentum: Number[Share] = option("SGD, RMSprop, Muon: momentum.")
    dampening: Number[Annotated[float, Field(ge=0, le=1)]] = option(
        "SGD: share by which a gradient is reduced before it is added to the momentum."
    )
    nesterov: Flag = option("SGD, Muon: use Nesterov momentum.")
    amsgrad: Flag = option("Adam, AdamW: divide by the largest second moment so far.")
    decoupled_weight_decay: Flag = option(
        "Adam, NAdam, RAdam: decouple weight decay, as AdamW does."
    )
    momentum_decay: Number[NotNegative] = option(
        "NAdam: rate at which the momentum grows with the steps."
    )
    alpha: Number[NotNegative] = option(
        "RMSprop: decay rate of the squared gradients. ASGD: power of the learning rate."
    )
    centered: Flag = option("RMSprop: divide by the variance instead of the mean square.")
    rho: Number[Share] = option("Adadelta: decay rate of the squared gradients.")
    lr_decay: Number[NotNegative] = option(
        "Adagrad: multiply the learning rate by 1 / (1 + steps * lr_decay)."
    )
    initial_accumulator_value: Number[NotNegative] = option(
        "Adagrad: initial value of the sum of squares.", resume=INITIAL
    )
    lambd: Number[NotNegative] = option("ASGD: decay of the weights.")
    t0: Number[NotNegative] = option("ASGD: step at which averaging of the weights starts.")
    etas: Several[tuple[Share, Annotated[float, Field(gt=1)]]] = option(
        "Rprop: factors that decrease and increase a step size."
    )
    step_sizes: Several[tuple[Positive, Positive]] = option(
        "Rprop: smallest and largest step size."
    )
    beta2_decay: Number[Annotated[float, Field(le=0)]] = option(
        "Adafactor: exponent of the decay of the squared gradients."
    )
    d: Number[Annotated[float, Field(ge=1)]] = option(
        "Adafactor: clip the root mean square of an update to this value."
    )
    max_iter: Number[Count] = option("L-BFGS: maximum number of iterations per step.")
    max_eval: Number[Count] = option("L-BFGS: maximum number of evaluations of the batch per step.")
    tolerance_grad: Number[NotNegative] = option(
        "L-BFGS: end the step when no gradient is larger than this."
    )
    tolerance_change: Number[NotNegative] = option(
        "L-BFGS: end the step when loss and weights change by less than this."
    )
    history_size: Number[Count] = option("L-BFGS: number of past updates to keep.")
    line_search_fn: Option[Literal["strong_wolfe"] | None, Off] = option(
        "L-BFGS: line search, by the strong Wolfe conditions, or none."
    )
    ns_coefficients: Several[tuple[Finite, Finite, Finite]] = option(
        "Muon: coefficients of the Newton-Schulz iteration."
    )
    ns_steps: Number[Annotated[Whole, Field(lt=100)]] = option(
        "Muon: number of Newton-Schulz iterations."
    )
    adjust_lr_fn: Word[Literal["original", "match_rms_adamw"]] = option(
        "Muon: how the learning rate depends on the shape of a matrix."
    )
    adamw_lr: Number[Positive] = option(
        "Muon, SparseAdam: peak learning rate of AdamW for the other parameters."
    )
    min_8bit_size: Number[Whole] = option(
        "8-bit AdamW: tensors with fewer values keep 32-bit moments.", resume=INITIAL
    )
    groups: Option[Groups, AnyParamGroup | Sequence[AnyParamGroup]] = option(
        "Learning rate, weight decay and freezing by name pattern: 'head.* "
        "lr=1e-3', 'type:LayerNorm decay=0', 'encoder.* freeze'; later groups "
        "win.",
        default=((), "not set: all parameters have the same options"),
    )
    layerwise_lr_decay: Number[Annotated[float, Field(gt=0, le=1)] | None] = option(
        "Each layer gets the learning rate of the layer above it times this factor.",
        default=(None, "not set: one learning rate for all layers"),
    )
