"""Options of the learning-rate schedule."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from surestep.base.plugins import SCHEDULES, plugin_names
from surestep.config.annotations import Flag, Interval, Number, Option, Several, Word
from surestep.config.group import ConfigGroup
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
    name: Option[ScheduleName, type] = option(
        "Learning-rate schedule; `surestep schedules` says what each is for."
    )
    warmup: Interval[Warmup] = option(
        "Length of the linear warm-up: '100 steps', '2 epochs' or a share such as '10%'."
    )
    warmup_start: Number[Ratio] = option(
        "Learning rate at the start of the warm-up, as a share of the peak.",
        requires={"schedule.warmup": ON},
    )
    interval: Interval[StepPeriod] = option(
        "How often the learning rate changes: '1 step', or '1 epoch' for a staircase."
    )
    min_lr: Number[NotNegative] = option(
        "Minimum learning rate, instead of min_lr_ratio.",
        excludes=("schedule.min_lr_ratio", "schedule.final_div_factor"),
    )
    min_lr_ratio: Number[Ratio] = option("Minimum learning rate, as a share of the peak.")
    min_lr_mode: Word[Literal["scale", "cut"]] = option(
        "scale: scale the curve so that it ends at the minimum; cut: keep the "
        "curve and stop it at the minimum."
    )
    cycles: Number[Count] = option(
        "cosine_restarts: number of equal cycles in the run.",
        excludes=("schedule.T_0", "schedule.T_mult"),
    )
    T_0: Interval[Length] = option(
        "cosine_restarts: length of the first cycle, such as '10 epochs'."
    )
    T_mult: Number[Count] = option(
        "cosine_restarts: length of each cycle divided by that of the one before."
    )
    save_cycles: Flag = option("Save a checkpoint at the end of each cycle and never delete it.")
    step_size: Interval[Length] = option(
        "step: length between two reductions of the learning rate."
    )
    milestones: Several[Milestones] = option(
        "multi_step: when to reduce the learning rate, counted from the start of the run."
    )
    gamma: Number[Positive] = option(
        "Factor on the learning rate at each reduction (cyclic: on the height)."
    )
    power: Number[Positive] = option("polynomial: exponent.")
    timescale: Interval[Length] = option(
        "inverse_sqrt: length after which the learning rate is 1/sqrt(2) of the peak."
    )
    decay: Interval[Length] = option(
        "warmup_stable_decay: length of the decay at the end of the run."
    )
    decay_shape: Word[Literal["1-sqrt", "linear", "cosine"]] = option(
        "warmup_stable_decay: curve of the decay."
    )
    pct_start: Number[Ratio] = option(
        "one_cycle: share of the run in which the learning rate rises."
    )
    anneal_strategy: Word[Literal["cos", "linear"]] = option(
        "one_cycle: rise and fall along a cosine or a line."
    )
    div_factor: Number[Positive] = option("one_cycle: peak learning rate divided by the first one.")
    final_div_factor: Number[Positive] = option(
        "one_cycle: first learning rate divided by the last one.",
        excludes=("schedule.min_lr_ratio",),
    )
    three_phase: Flag = option(
        "one_cycle: fall to the first learning rate, then to the last, in two phases."
    )
    cycle_momentum: Flag = option(
        "Cycle the momentum (or first beta) inversely to the learning rate."
    )
    base_momentum: Number[Share] = option(
        "Momentum when the learning rate is highest.", requires={"schedule.cycle_momentum": True}
    )
    max_momentum: Number[Share] = option(
        "Momentum when the learning rate is lowest.", requires={"schedule.cycle_momentum": True}
    )
    step_size_up: Interval[Length] = option("cyclic: length of the rise.")
    step_size_down: Interval[Length] = option("cyclic: length of the fall.")
    mode: Word[Literal["triangular", "triangular2", "exp_range"]] = option(
        "cyclic: keep the height of the cycles, halve it in each cycle, or multiply it by gamma^t."
    )
    factor: Number[Annotated[float, Field(gt=0, lt=1)]] = option(
        "reduce_on_plateau: factor on the learning rate at each reduction."
    )
    patience: Number[Whole] = option(
        "reduce_on_plateau: evaluations without improvement before a reduction."
    )
    threshold: Number[NotNegative] = option(
        "reduce_on_plateau: smallest change that counts as an improvement."
    )
    threshold_mode: Word[Literal["rel", "abs"]] = option(
        "reduce_on_plateau: whether the threshold is relative or absolute."
    )
    cooldown: Number[Whole] = option("reduce_on_plateau: evaluations to ignore after a reduction.")
