"""The learning rate of an ejected script."""

from typing import Any

from surestep.eject.choices import Choices, flags_of
from surestep.engine.schedule.curves import ENDS_BY_ITSELF, HAIR, curve_start, decay_steps, phases
from surestep.engine.schedule.curves import restarts as cycle_starts
from surestep.engine.schedule.registry import ScheduleSpec

_PLAIN = ("constant", "reduce_on_plateau")


def choose_schedule(shape: ScheduleSpec, *, has_betas: bool = False) -> Choices:
    """Return what a schedule chooses of `templates/curves.py`, and if there is one at all.

    Args:
        shape: the schedule.
        has_betas: the optimizer has betas, of which the first is the momentum.
    """
    every, start = shape.interval, curve_start(shape)
    flat = shape.name in _PLAIN or decay_steps(shape) <= 0
    whole = shape.warmup - start <= HAIR * every
    ratio = 0.0 if shape.name in ENDS_BY_ITSELF else shape.min_lr_ratio
    flags = flags_of(
        scheduled=not flat or shape.warmup > 0 or shape.name == "reduce_on_plateau",
        plateau=shape.name == "reduce_on_plateau",
        factor=not flat or shape.warmup > 0,
        constant=flat,
        warmup=shape.warmup > 0,
        staircase=every != 1 and not (flat and not shape.warmup),
        whole_warmup=every != 1 and shape.warmup > every and whole,
        floor=ratio > 0,
        cycles=shape.momentum is not None,
        betas=has_betas,
        limited=shape.min_lr_mode != "scale",
    )
    constants: dict[str, Any] = {
        "WARMUP_STEPS": shape.warmup,
        "WARMUP_PERIODS": start / every,
        "WARMUP_START": _warmup_start(shape, in_periods="whole_warmup" in flags),
        "PERIOD": every,
        "DECAY_LENGTH": decay_steps(shape),
        "MIN_LR_RATIO": ratio,
    }
    if flat:
        return Choices(flags, constants)
    return Choices(flags | {shape.name}, constants) | _choose_curve(shape)


def _warmup_start(shape: ScheduleSpec, *, in_periods: bool) -> float:
    """Return where the warm-up starts: by default at the share of its first step."""
    length = curve_start(shape) / shape.interval if in_periods else shape.warmup
    if shape.warmup_start is not None:
        return shape.warmup_start
    return 1 / length if length > 1 else 1.0


def _choose_curve(shape: ScheduleSpec) -> Choices:
    """Return what the options of a curve choose; lengths are in intervals."""
    own, every, length = shape.curve_options, shape.interval, decay_steps(shape)
    match shape.name:
        case "cosine_restarts":
            first = None if own["T_0"] is None else own["T_0"] / every
            starts = cycle_starts(length, T_0=first, T_mult=own["T_mult"], cycles=own["cycles"])
            return Choices(constants={"STARTS": tuple(starts)})
        case "step":
            return Choices(constants={"STEP_SIZE": own["step_size"] / every, "GAMMA": own["gamma"]})
        case "multi_step":
            after = tuple((step - curve_start(shape)) / every for step in own["milestones"])
            return Choices(constants={"MILESTONES": after, "GAMMA": own["gamma"]})
        case "exponential":
            return Choices(constants={"GAMMA": own["gamma"]})
        case "polynomial":
            return Choices(constants={"POWER": own["power"]})
        case "inverse_sqrt":
            return Choices(constants={"TIMESCALE": own["timescale"] / every})
        case "warmup_stable_decay":
            return _choose_stable_decay(own, every, length)
        case "one_cycle":
            return _choose_one_cycle(shape)
        case "cyclic":
            return _choose_cyclic(shape)
    return Choices()


def _choose_stable_decay(own: Any, every: float, length: float) -> Choices:
    fall, shape = own["decay"] / every, own["decay_shape"]
    return Choices(
        flags_of(**{f"fall_{'sqrt' if shape == '1-sqrt' else shape}": True}),
        {"STABLE_LENGTH": length - fall, "FALL_LENGTH": fall},
    )


def _choose_one_cycle(shape: ScheduleSpec) -> Choices:
    own, first = shape.curve_options, 1 / shape.curve_options["div_factor"]
    ends = phases(decay_steps(shape), pct_start=own["pct_start"], three_phase=own["three_phase"])
    middle = [first] if own["three_phase"] else []
    low, high = shape.momentum or (0.0, 0.0)
    return Choices(
        flags_of(waves=own["anneal_strategy"] == "cos"),
        {
            "POINTS": tuple(ends),
            "VALUES": (first, 1.0, *middle, shape.min_lr_ratio),
            "MOMENTA": (high, low, high, high)[: len(ends)],
        },
    )


def _choose_cyclic(shape: ScheduleSpec) -> Choices:
    own, every, momenta = shape.curve_options, shape.interval, shape.momentum or ()
    up, down, mode = own["step_size_up"] / every, own["step_size_down"] / every, own["mode"]
    return Choices(
        flags_of(halves=mode == "triangular2", shrinks=mode == "exp_range"),
        {"UP_LENGTH": up, "CYCLE_LENGTH": up + down, "GAMMA": own["gamma"]}
        | {"MOMENTA": tuple(reversed(momenta))},
    )
