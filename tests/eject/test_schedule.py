"""The printed learning rate equals that of the engine, at every step."""

import math
from typing import Any

import pytest

from surestep.eject.assemble import read_library
from surestep.eject.layout import join_statements
from surestep.eject.schedule import choose_schedule
from surestep.engine.schedule import curves
from surestep.engine.schedule.curves import lr_factor
from surestep.engine.schedule.lr import momentum
from surestep.engine.schedule.registry import ScheduleSpec

TOTAL = 60
CURVES: dict[str, dict[str, Any]] = {
    "constant": {},
    "linear": {},
    "cosine": {},
    "cosine_restarts": {"T_0": 8.0, "T_mult": 2, "cycles": None},
    "step": {"step_size": 7.0, "gamma": 0.5},
    "multi_step": {"milestones": (10, 31.5), "gamma": 0.3},
    "exponential": {"gamma": 0.97},
    "polynomial": {"power": 1.5},
    "inverse_sqrt": {"timescale": 10.0},
    "warmup_stable_decay": {"decay": 20.0, "decay_shape": "1-sqrt"},
    "one_cycle": {
        "pct_start": 0.3,
        "anneal_strategy": "cos",
        "div_factor": 25.0,
        "three_phase": False,
    },
    "cyclic": {"step_size_up": 5.0, "step_size_down": 8.0, "mode": "triangular", "gamma": 1.0},
    "reduce_on_plateau": {},
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "warm-up": {"warmup": 6.0},
    "warm-up that is not whole": {"warmup": 6.6, "warmup_start": 0.2},
    "warm-up of a step": {"warmup": 1.0},
    "warm-up alone": {"warmup": 60.0},
    "floor": {"min_lr_ratio": 0.1, "warmup": 3.0},
    "limited": {"min_lr_ratio": 0.1, "min_lr_mode": "cut"},
    "staircase": {"interval": 6.0},
    "staircase after a rise": {"interval": 6.0, "warmup": 12.0},
    "staircase after a rise by steps": {"interval": 6.0, "warmup": 9.0, "min_lr_ratio": 0.2},
    "staircase after a short rise": {"interval": 6.0, "warmup": 2.0},
}
OTHERS = {
    "cycles": ("cosine_restarts", {"T_0": None, "T_mult": None, "cycles": 3}),
    "linear fall": ("warmup_stable_decay", {"decay": 20.0, "decay_shape": "linear"}),
    "cosine fall": ("warmup_stable_decay", {"decay": 20.0, "decay_shape": "cosine"}),
    "three phases": (
        "one_cycle",
        {**CURVES["one_cycle"], "three_phase": True, "anneal_strategy": "linear"},
    ),
    "triangular2": ("cyclic", {**CURVES["cyclic"], "mode": "triangular2"}),
    "exp_range": ("cyclic", {**CURVES["cyclic"], "mode": "exp_range", "gamma": 0.98}),
}


def call_printed(function: str, shape: ScheduleSpec) -> list[float]:
    """Return what the printed function returns at each step; 1 if none is printed."""
    choices = choose_schedule(shape)
    if "factor" not in choices.flags:
        return [1.0] * TOTAL
    needed = read_library(choices).reach([function])
    names: dict[str, Any] = dict(vars(math), math=math)
    exec("from bisect import bisect_left, bisect_right", names)
    exec(join_statements(needed.statements), names)
    names.update(choices.constants)
    return [names[function](step) for step in range(TOTAL)]


def check(shape: ScheduleSpec) -> None:
    at = lr_factor(shape)
    assert call_printed("lr_factor", shape) == [at(step) for step in range(TOTAL)]


def test_every_schedule_is_compared():
    assert CURVES.keys() == curves.CURVES.keys()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CURVES)
def test_printed_rate_is_that_of_the_engine_at_every_step(name, shape):
    check(ScheduleSpec(name, TOTAL, curve_options=CURVES[name], **SHAPES[shape]))


@pytest.mark.parametrize("name", OTHERS)
def test_printed_rate_of_other_options_is_that_of_the_engine(name):
    curve, options = OTHERS[name]
    check(ScheduleSpec(curve, TOTAL, warmup=4.0, curve_options=options))


@pytest.mark.parametrize("warmup", [0.0, 7.5])
@pytest.mark.parametrize("interval", [1.0, 4.0])
@pytest.mark.parametrize("name", ["one_cycle", "cyclic"])
def test_printed_momentum_is_that_of_the_engine_at_every_step(name, interval, warmup):
    shape = ScheduleSpec(
        *(name, TOTAL, warmup),
        interval=interval,
        curve_options=CURVES[name],
        momentum=(0.8, 0.95),
    )
    at = momentum(shape)
    assert call_printed("momentum_at", shape) == [at(step) for step in range(TOTAL)]
