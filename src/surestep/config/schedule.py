"""Options of the learning-rate schedule."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from surestep.base.plugins import SCHEDULES, plugin_names
from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import ON, ResumeEffect, blocked, option
from surestep.config.types import (
    Count,
    Length,
    Milestones,
    NotNegative,
    Positive,
    Share,
    StepPeriod,
    Warmup,
    Whole,
)

Ratio = Annotated[float, Field(ge=0, le=1)]
if TYPE_CHECKING:
    ScheduleName = str
else:
    BUILT_IN = (
        *("constant", "linear", "cosine", "cosine_restarts", "step", "multi_step"),
        *("exponential", "polynomial", "inverse_sqrt", "warmup_stable_decay", "one_cycle"),
        *("cyclic", "reduce_on_plateau"),
    )
    ScheduleName = Literal[(*BUILT_IN, *plugin_names(SCHEDULES, BUILT_IN))]


class Schedule(ConfigGroup):
    """The learning-rate schedule: a function of the number of parameter updates.

    Example:
        >>> import surestep
        >>> surestep.Schedule(name="cosine", warmup="5%", min_lr=1e-5).warmup
        '5%'
    """

    prefix: ClassVar[str] = "schedule."
    resume: ClassVar[ResumeEffect] = blocked(
        "the learning rate would follow another curve than so far"
    )
    name: ScheduleName | NotSet = option(
        "Learning-rate schedule; `surestep schedules` says what each is for."
    )
    warmup: Warmup | NotSet = option(
        "Length of the linear warm-up: '100 steps', '2 epochs' or a share such as '10%'."
    )
    warmup_start: Ratio | NotSet = option(
        "Learning rate at the start of the warm-up, as a share of the peak.",
        requires={"schedule.warmup": ON},
    )
    interval: StepPeriod | NotSet = option(
        "How often the learning rate changes: '1 step', or '1 epoch' for a staircase."
    )
    min_lr: NotNegative | NotSet = option(
        "Minimum learning rate, instead of min_lr_ratio.",
        excludes=("schedule.min_lr_ratio", "schedule.final_div_factor"),
    )
    min_lr_ratio: Ratio | NotSet = option("Minimum learning rate, as a share of the peak.")
    min_lr_mode: Literal["scale", "cut"] | NotSet = option(
        "scale: scale the curve so that it ends at the minimum; cut: keep the "
        "curve and stop it at the minimum."
    )
    cycles: Count | NotSet = option(
        "cosine_restarts: number of equal cycles in the run.",
        excludes=("schedule.T_0", "schedule.T_mult"),
    )
    T_0: Length | NotSet = option(
        "cosine_restarts: length of the first cycle, such as '10 epochs'."
    )
    T_mult: Count | NotSet = option(
        "cosine_restarts: length of each cycle divided by that of the one before."
    )
    save_cycles: bool | NotSet = option(
        "Save a checkpoint at the end of each cycle and never delete it."
    )
    step_size: Length | NotSet = option("step: length between two reductions of the learning rate.")
    milestones: Milestones | NotSet = option(
        "multi_step: when to reduce the learning rate, counted from the start of the run."
    )
    gamma: Positive | NotSet = option(
        "Factor on the learning rate at each reduction (cyclic: on the height)."
    )
    power: Positive | NotSet = option("polynomial: exponent.")
    timescale: Length | NotSet = option(
        "inverse_sqrt: length after which the learning rate is 1/sqrt(2) of the peak."
    )
    decay: Length | NotSet = option(
        "warmup_stable_decay: length of the decay at the end of the run."
    )
    decay_shape: Literal["1-sqrt", "linear", "cosine"] | NotSet = option(
        "warmup_stable_decay: curve of the decay."
    )
    pct_start: Ratio | NotSet = option(
        "one_cycle: share of the run in which the learning rate rises."
    )
    anneal_strategy: Literal["cos", "linear"] | NotSet = option(
        "one_cycle: rise and fall along a cosine or a line."
    )
    div_factor: Positive | NotSet = option(
        "one_cycle: peak learning rate divided by the first one."
    )
    final_div_factor: Positive | NotSet = option(
        "one_cycle: first learning rate divided by the last one.",
        excludes=("schedule.min_lr_ratio",),
    )
    three_phase: bool | NotSet = option(
        "one_cycle: fall to the first learning rate, then to the last, in two phases."
    )
    cycle_momentum: bool | NotSet = option(
        "Cycle the momentum (or first beta) inversely to the learning rate."
    )
    base_momentum: Share | NotSet = option(
        "Momentum when the learning rate is highest.", requires={"schedule.cycle_momentum": True}
    )
    max_momentum: Share | NotSet = option(
        "Momentum when the learning rate is lowest.", requires={"schedule.cycle_momentum": True}
    )
    step_size_up: Length | NotSet = option("cyclic: length of the rise.")
    step_size_down: Length | NotSet = option("cyclic: length of the fall.")
    mode: Literal["triangular", "triangular2", "exp_range"] | NotSet = option(
        "cyclic: keep the height of the cycles, halve it in each cycle, or multiply it by gamma^t."
    )
    factor: Annotated[float, Field(gt=0, lt=1)] | NotSet = option(
        "reduce_on_plateau: factor on the learning rate at each reduction."
    )
    patience: Whole | NotSet = option(
        "reduce_on_plateau: evaluations without improvement before a reduction."
    )
    threshold: NotNegative | NotSet = option(
        "reduce_on_plateau: smallest change that counts as an improvement."
    )
    threshold_mode: Literal["rel", "abs"] | NotSet = option(
        "reduce_on_plateau: whether the threshold is relative or absolute."
    )
    cooldown: Whole | NotSet = option("reduce_on_plateau: evaluations to ignore after a reduction.")
