"""Options of the learning-rate schedule."""

import re
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from surestep.base.errors import ConfigError, suggest_names
from surestep.config.group import ConfigGroup
from surestep.config.not_set import NotSet
from surestep.config.option import ResumeEffect, blocked, option
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
    parse_length,
)

Ratio = Annotated[float, Field(ge=0, le=1)]
Stage = Annotated[str, AfterValidator(lambda text: validate_stage(text))]
Chain = Annotated[tuple[Stage, ...], Field(min_length=2)]


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
    name: (
        Literal[
            "constant",
            "linear",
            "cosine",
            "cosine_restarts",
            "step",
            "multi_step",
            "exponential",
            "polynomial",
            "inverse_sqrt",
            "warmup_stable_decay",
            "one_cycle",
            "cyclic",
            "reduce_on_plateau",
            "chain",
        ]
        | NotSet
    ) = option("Learning-rate schedule; `surestep schedules` says what each is for.")
    warmup: Warmup | NotSet = option(
        "Length of the linear warm-up: '100 steps', '2 epochs' or a share such as '10%'."
    )
    warmup_start: Ratio | NotSet = option(
        "Learning rate at the start of the warm-up, as a share of the peak."
    )
    interval: StepPeriod | NotSet = option(
        "How often the learning rate changes: '1 step', or '1 epoch' for a staircase."
    )
    min_lr: NotNegative | NotSet = option("Minimum learning rate, instead of min_lr_ratio.")
    min_lr_ratio: Ratio | NotSet = option("Minimum learning rate, as a share of the peak.")
    min_lr_mode: Literal["scale", "cut"] | NotSet = option(
        "scale: scale the curve so that it ends at the minimum; cut: keep the "
        "curve and stop it at the minimum."
    )
    cycles: Count | NotSet = option("cosine_restarts: number of equal cycles in the run.")
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
        "one_cycle: first learning rate divided by the last one."
    )
    three_phase: bool | NotSet = option(
        "one_cycle: fall to the first learning rate, then to the last, in two phases."
    )
    cycle_momentum: bool | NotSet = option(
        "Cycle the momentum (or first beta) inversely to the learning rate."
    )
    base_momentum: Share | NotSet = option("Momentum when the learning rate is highest.")
    max_momentum: Share | NotSet = option("Momentum when the learning rate is lowest.")
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
    chain: Chain | NotSet = option(
        "Schedules to run one after another: 'linear 500 steps' 'cosine'."
    )


class StageSpec(NamedTuple):
    """The parsed text of one stage of a chain."""

    name: str
    length: str | None
    scale: float
    options: dict[str, object]


_STAGE = re.compile(
    r"(?P<name>\w+)(?:\s+(?P<length>[0-9.]+(?:e[+-]?[0-9]+)?\s*(?:%|[a-z]+)))?"
    r"(?P<options>(?:\s+\w+=\S+)*)"
)


def parse_stage(text: str) -> StageSpec:
    """Read 'NAME [LENGTH] [option=value ...]', such as 'cosine 10 epochs min_lr_ratio=0.1'.

    Raises:
        ConfigError: the text is not a stage, or has an unknown option or an invalid value.
    """
    match = _STAGE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"schedule.chain: {text!r} is not a stage. Write NAME LENGTH option=value, such as "
            "'linear 500 steps' or 'cosine 10 epochs min_lr_ratio=0.1'."
        )
    options: dict[str, object] = {}
    for pair in match["options"].split():
        option, _, value = pair.partition("=")
        options[option] = value
    try:
        scale = float(str(options.pop("scale", 1)))
    except ValueError:
        scale = -1.0
    if not 0 <= scale < float("inf"):
        raise ConfigError(f"schedule.chain: {text!r}: scale must be a number of at least 0.")
    if "milestones" in options:
        options["milestones"] = tuple(str(options["milestones"]).split(","))
    wrong = [name for name in options if name not in Schedule.model_fields]
    if wrong:
        raise ConfigError(
            f"schedule.chain: {text!r}: there is no option {wrong[0]!r}. "
            f"{suggest_names(wrong[0], [*Schedule.model_fields, 'scale'])}"
        )
    name = None if match["name"] == "warmup" else match["name"]
    read = Schedule.model_validate({"name": name, **options})
    try:
        length = parse_length(match["length"]) if match["length"] else None
    except ValueError as error:
        raise ConfigError(f"schedule.chain: {text!r}: its length {error}.") from None
    return StageSpec(match["name"], length, scale, {key: getattr(read, key) for key in options})


def validate_stage(text: str) -> str:
    """Return the text of a stage if it is valid."""
    parse_stage(text)
    return text
