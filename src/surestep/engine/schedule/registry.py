"""The registry of schedules: purpose, options, formula and source of each.

The rules and constraints of the Plan, `surestep schedules` and the tests read it. It does not
import torch.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

from surestep.base.plugins import SCHEDULES, load_plugin, plugin_names
from surestep.config.schedule import Schedule

Factor = Callable[[int], float]
UserFunction = Callable[[int, int], float]
OWN = "own"


class OptionDefault(NamedTuple):
    """The default of an option and its reason; None is computed from other options."""

    value: Any
    reason: str


@dataclass(frozen=True)
class ScheduleInfo:
    """A schedule.

    Attributes:
        purpose: what it is for, in one sentence.
        formula: the factor on the peak learning rate after the warm-up, at step t of T.
        source: the class, function or paper that it equals.
        takes: its options, without "schedule.", with their defaults.
        needs: the required options, each with an example.
        example: what to type on the command line.
    """

    purpose: str
    formula: str
    source: str
    takes: Mapping[str, OptionDefault]
    example: str
    needs: Mapping[str, str] = field(default_factory=dict)


def _torch(**defaults: Any) -> dict[str, OptionDefault]:
    return {option: OptionDefault(value, "torch's default") for option, value in defaults.items()}


_NEEDED = OptionDefault(None, "required")
_WARMUP = {
    "warmup": OptionDefault("0%", "not set: no warm-up"),
    "warmup_start": OptionDefault(None, "not set: 1 / steps of the warm-up"),
    "interval": OptionDefault("1 step", "the learning rate changes at every step"),
}
_FLOOR = {
    "min_lr": OptionDefault(None, "not set: min_lr_ratio sets the minimum"),
    "min_lr_ratio": OptionDefault(0.0, "down to zero"),
    "min_lr_mode": OptionDefault("scale", "the curve reaches the minimum at the end"),
}
# These curves have no end, so they cannot be scaled to end at the minimum.
_CUT = {
    **_FLOOR,
    "min_lr_mode": OptionDefault("cut", "the curve falls as specified, and stops at the minimum"),
}
_FALLING, _STEPPING = {**_WARMUP, **_FLOOR}, {**_WARMUP, **_CUT}
_SAVE = {"save_cycles": OptionDefault(False, "not set: only the last and the best are kept")}
_PER_EPOCH = OptionDefault("1 epoch", "gamma applies once an epoch, as in torch's examples")

BUILT_IN: dict[str, ScheduleInfo] = {
    "constant": ScheduleInfo(
        "Constant learning rate: first experiments, and optimizers that adapt by themselves.",
        "1",
        "torch.optim.lr_scheduler.ConstantLR(factor=1); "
        "transformers.get_constant_schedule_with_warmup",
        _WARMUP,
        "--schedule.name constant --schedule.warmup 5%",
    ),
    "linear": ScheduleInfo(
        "Fine-tuning of language models: a straight line down to the minimum.",
        "1 - t/T",
        "torch.optim.lr_scheduler.LinearLR; transformers.get_linear_schedule_with_warmup",
        _FALLING,
        "--schedule.name linear --schedule.warmup 10%",
    ),
    "cosine": ScheduleInfo(
        "The usual choice if the length of the run is known.",
        "(1 + cos(pi t/T)) / 2",
        "torch.optim.lr_scheduler.CosineAnnealingLR; "
        "transformers.get_cosine_with_min_lr_schedule_with_warmup; arXiv:1608.03983",
        _FALLING,
        "--schedule.name cosine --schedule.warmup 5% --schedule.min-lr-ratio 0.1",
    ),
    "cosine_restarts": ScheduleInfo(
        "Several minima in one run: snapshot ensembles, or a run that may end early.",
        "(1 + cos(pi s/S)) / 2, s into a cycle of S, S = T_0 T_mult^i or T / cycles",
        "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts; "
        "transformers.get_cosine_with_hard_restarts_schedule_with_warmup; arXiv:1704.00109",
        {
            **_FALLING,
            "T_0": OptionDefault(None, "not set: computed from cycles"),
            "T_mult": OptionDefault(1, "every cycle as long as the first"),
            "cycles": OptionDefault(None, "not set: computed from T_0"),
            **_SAVE,
        },
        "--schedule.name cosine_restarts --schedule.cycles 5 --schedule.save-cycles True",
    ),
    "step": ScheduleInfo(
        "Classic image training: a reduction at a fixed interval of epochs.",
        "gamma ^ floor(t / step_size)",
        "torch.optim.lr_scheduler.StepLR",
        {**_STEPPING, "step_size": _NEEDED, **_torch(gamma=0.1)},
        "--schedule.name step --schedule.step-size '30 epochs'",
        {"step_size": "'30 epochs'"},
    ),
    "multi_step": ScheduleInfo(
        "Reductions at chosen points, counted from the start of the run.",
        "gamma ^ (milestones passed)",
        "torch.optim.lr_scheduler.MultiStepLR",
        {**_STEPPING, "milestones": _NEEDED, **_torch(gamma=0.1)},
        "--schedule.name multi_step --schedule.milestones 50% 75%",
        {"milestones": "('50%', '75%')"},
    ),
    "exponential": ScheduleInfo(
        "Decay by a constant factor every epoch (or every `interval`).",
        "gamma ^ t",
        "torch.optim.lr_scheduler.ExponentialLR",
        {**_STEPPING, "interval": _PER_EPOCH, "gamma": _NEEDED},
        "--schedule.name exponential --schedule.gamma 0.95",
        {"gamma": "0.95"},
    ),
    "polynomial": ScheduleInfo(
        "Segmentation and detection recipes: power 0.9 or 2; power 1 is linear.",
        "(1 - t/T) ^ power",
        "torch.optim.lr_scheduler.PolynomialLR; "
        "transformers.get_polynomial_decay_schedule_with_warmup",
        {**_FALLING, "power": OptionDefault(1.0, "torch's default: a line")},
        "--schedule.name polynomial --schedule.power 0.9",
    ),
    "inverse_sqrt": ScheduleInfo(
        "Transformers trained without a fixed end; needs a warm-up.",
        "1 / sqrt((t + timescale) / timescale)",
        "transformers.get_inverse_sqrt_schedule; arXiv:1706.03762",
        {
            **_STEPPING,
            "timescale": OptionDefault(None, "not set: the length of the warm-up, or 10000 steps"),
        },
        "--schedule.name inverse_sqrt --schedule.warmup '4000 steps'",
    ),
    "warmup_stable_decay": ScheduleInfo(
        "Long runs whose length may change: a checkpoint of the flat part can be resumed.",
        "1 until the last `decay` steps, then 1 - sqrt(s), 1 - s or (1 + cos(pi s)) / 2",
        "transformers.get_wsd_schedule; arXiv:2405.18392",
        {
            **_FALLING,
            "decay": OptionDefault("20%", "matches cosine in arXiv:2405.18392"),
            "decay_shape": OptionDefault("1-sqrt", "the best shape in arXiv:2405.18392"),
        },
        "--schedule.name warmup_stable_decay --schedule.warmup 2% --schedule.decay 20%",
    ),
    "one_cycle": ScheduleInfo(
        "Fast training at a high peak; the momentum falls while the learning rate rises.",
        "1/div_factor up to 1 over pct_start of T, then down to 1/(div_factor final_div_factor)",
        "torch.optim.lr_scheduler.OneCycleLR; arXiv:1708.07120",
        {
            "interval": _WARMUP["interval"],
            "min_lr": _FLOOR["min_lr"],
            **_torch(pct_start=0.3, anneal_strategy="cos", div_factor=25.0, final_div_factor=1e4),
            "min_lr_ratio": OptionDefault(None, "not set: 1 / (div_factor final_div_factor)"),
            **_torch(three_phase=False, cycle_momentum=True, base_momentum=0.85, max_momentum=0.95),
        },
        "--schedule.name one_cycle --optim.lr 0.01",
    ),
    "cyclic": ScheduleInfo(
        "Up and down between minimum and peak: to find a range, or to leave poor minima.",
        "floor + (1 - floor) triangle(t), its height 1, 1/2^(cycle-1) or gamma^t",
        "torch.optim.lr_scheduler.CyclicLR; arXiv:1506.01186",
        {
            **_WARMUP,
            "min_lr": _FLOOR["min_lr"],
            "min_lr_ratio": OptionDefault(0.25, "a quarter of the peak: arXiv:1506.01186, 3.3"),
            "step_size_up": OptionDefault("10%", "five cycles in the run"),
            "step_size_down": OptionDefault(None, "not set: as long as step_size_up"),
            **_torch(mode="triangular", gamma=1.0),
            "cycle_momentum": OptionDefault(False, "a long run needs a constant momentum"),
            **_torch(base_momentum=0.8, max_momentum=0.9),
            **_SAVE,
        },
        "--schedule.name cyclic --schedule.step-size-up '2 epochs'",
    ),
    "reduce_on_plateau": ScheduleInfo(
        "Reductions when evaluations stop improving, if the length of the run is not known.",
        "factor ^ (plateaus so far)",
        "torch.optim.lr_scheduler.ReduceLROnPlateau",
        {
            "warmup": _WARMUP["warmup"],
            "warmup_start": _WARMUP["warmup_start"],
            "min_lr": _FLOOR["min_lr"],
            "min_lr_ratio": _FLOOR["min_lr_ratio"],
            **_torch(factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel", cooldown=0),
        },
        "--schedule.name reduce_on_plateau --schedule.patience 3",
    ),
    OWN: ScheduleInfo(
        "A custom function: Task(schedule=lambda steps_taken, total: factor).",
        "what the function returns",
        "torch.optim.lr_scheduler.LambdaLR",
        {},
        "Task(..., schedule=lambda steps_taken, total: 1 / (1 + steps_taken))",
    ),
}


@dataclass(frozen=True)
class ScheduleSpec:
    """A schedule with every option decided; lengths are in optimizer steps.

    Attributes:
        name: as in the registry.
        total: the length of the run.
        warmup: the length of the linear rise before it.
        warmup_start: where that rise begins, as a share of the peak; None is one step's share.
        min_lr_ratio: the minimum, as a share of the peak.
        min_lr_mode: "scale" to end at the minimum, or "cut" to stop there.
        interval: how many steps the rate stays constant.
        curve_options: the options of its curve alone.
        momentum: the lowest and the highest, where it is cycled with the rate.
        save_cycles: a checkpoint at the end of each cycle.
    """

    name: str
    total: float
    warmup: float = 0.0
    warmup_start: float | None = None
    min_lr_ratio: float = 0.0
    min_lr_mode: Literal["scale", "cut"] = "scale"
    interval: float = 1.0
    curve_options: Mapping[str, Any] = field(default_factory=dict)
    momentum: tuple[float, float] | None = None
    save_cycles: bool = False


@cache
def schedule_info(name: str) -> ScheduleInfo:
    """Return a schedule by its name: a built-in one, or the function that a package registers.

    Raises:
        KeyError: there is none.
        ConfigError: the plug-in cannot be loaded.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    function = load_plugin(SCHEDULES, name)
    own = {
        option: OptionDefault(parameter.default, f"the default of {name}")
        for option, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and option in Schedule.model_fields
    }
    purpose = (inspect.getdoc(function) or "A plug-in.").splitlines()[0]
    source = f"{function.__module__}.{function.__qualname__}"
    example = f"--schedule.name {name}"
    return ScheduleInfo(purpose, f"{name}(t, T)", source, {**_FALLING, **own}, example)


def schedule_names() -> tuple[str, ...]:
    """List the schedules, plug-ins last."""
    return (*BUILT_IN, *plugin_names(SCHEDULES, BUILT_IN))
