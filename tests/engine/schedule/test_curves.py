"""Each schedule equals torch's class at every step of a run; and options torch lacks."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from surestep.base.errors import TaskError
from surestep.engine.schedule.curves import lr_factor, restarts
from surestep.engine.schedule.lr import (
    PlateauState,
    cycle_ends,
    lr_summary,
    make_lr_factor,
    momentum,
)
from surestep.engine.schedule.registry import ScheduleSpec
from tests.tiny import GIVEN, decide

LR, STEPS = 0.4, 60
SEQUENCE = lr_scheduler.SequentialLR


def shape(steps: int = STEPS, **said: object) -> ScheduleSpec:
    """A schedule as the Plan decides it: 10 steps an epoch, peak at 0.4."""
    options = {f"schedule.{name}": value for name, value in said.items()}
    options |= {"epochs": None, "max_steps": steps, "batch_size": 10, "optim.lr": LR}
    options |= {"optim.name": "sgd", "optim.momentum": 0.9}
    return decide(options, given=GIVEN).schedule


def torchs(make, steps: int = STEPS, every: int = 1, lr: float = LR) -> tuple[list, list]:
    """The learning rate and momentum of each step with torch's class."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr, momentum=0.9)
    scheduler = make(optimizer)
    found, momenta = [], []
    for step in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        optimizer.step()
        if (step + 1) % every == 0:
            with warnings.catch_warnings():  # SequentialLR triggers a warning of torch
                warnings.filterwarnings("ignore", "The epoch parameter")
                scheduler.step()
    return found, momenta


def ours(decided: ScheduleSpec, steps: int = STEPS) -> list[float]:
    at = lr_factor(decided)
    return [LR * at(step) for step in range(steps)]


def equal(found, expected):
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert len(set(found)) > 1


L = lr_scheduler
CASES = {
    "linear": ({"name": "linear"}, lambda o: L.LinearLR(o, 1.0, 0.0, STEPS)),
    "linear to a floor": (
        {"name": "linear", "min_lr_ratio": 0.25},
        lambda o: L.LinearLR(o, 1.0, 0.25, STEPS),
    ),
    "cosine": ({"name": "cosine"}, lambda o: L.CosineAnnealingLR(o, STEPS)),
    "cosine to a rate": (
        {"name": "cosine", "min_lr": 0.1},
        lambda o: L.CosineAnnealingLR(o, STEPS, eta_min=0.1),
    ),
    "equal restarts": (
        {"name": "cosine_restarts", "T_0": "7 steps", "min_lr": 0.01},
        lambda o: L.CosineAnnealingWarmRestarts(o, 7, eta_min=0.01),
    ),
    "longer restarts": (
        {"name": "cosine_restarts", "T_0": "5 steps", "T_mult": 2},
        lambda o: L.CosineAnnealingWarmRestarts(o, 5, 2),
    ),
    "counted restarts": (
        {"name": "cosine_restarts", "cycles": 4},
        lambda o: L.CosineAnnealingWarmRestarts(o, 15),
    ),
    "step": (
        {"name": "step", "step_size": "2 epochs", "gamma": 0.3},
        lambda o: L.StepLR(o, 20, 0.3),
    ),
    "multi-step": (
        {"name": "multi_step", "milestones": ("25%", "3 epochs", "41 steps")},
        lambda o: L.MultiStepLR(o, [15, 30, 41]),
    ),
    "exponential": (
        {"name": "exponential", "gamma": 0.9, "interval": "1 step"},
        lambda o: L.ExponentialLR(o, 0.9),
    ),
    "polynomial": (
        {"name": "polynomial", "power": 2.5},
        lambda o: L.PolynomialLR(o, STEPS, power=2.5),
    ),
    "one cycle": ({"name": "one_cycle"}, lambda o: L.OneCycleLR(o, LR, total_steps=STEPS)),
    "one cycle on lines": (
        {"name": "one_cycle", "anneal_strategy": "linear", "pct_start": 0.45, "div_factor": 4},
        lambda o: L.OneCycleLR(
            o, LR, total_steps=STEPS, anneal_strategy="linear", pct_start=0.45, div_factor=4
        ),
    ),
    "one cycle in three phases": (
        {"name": "one_cycle", "three_phase": True, "base_momentum": 0.5, "final_div_factor": 10},
        lambda o: L.OneCycleLR(
            o, LR, total_steps=STEPS, three_phase=True, base_momentum=0.5, final_div_factor=10
        ),
    ),
    "one cycle to a rate": (
        {"name": "one_cycle", "min_lr": 0.001},
        lambda o: L.OneCycleLR(o, LR, total_steps=STEPS, final_div_factor=LR / 25 / 0.001),
    ),
    "one cycle that only falls": (
        {"name": "one_cycle", "pct_start": 0.0},
        lambda o: L.OneCycleLR(o, LR, total_steps=STEPS, pct_start=0.0),
    ),
    "cyclic": (
        {"name": "cyclic", "step_size_up": "7 steps", "step_size_down": "4 steps", "min_lr": 0.1},
        lambda o: L.CyclicLR(o, 0.1, LR, 7, 4, cycle_momentum=False),
    ),
    "cyclic, halved": (
        {"name": "cyclic", "step_size_up": "5 steps", "mode": "triangular2", "min_lr": 0.1},
        lambda o: L.CyclicLR(o, 0.1, LR, 5, mode="triangular2", cycle_momentum=False),
    ),
    "cyclic with momentum": (
        {
            **{"name": "cyclic", "step_size_up": "5 steps", "mode": "exp_range", "gamma": 0.97},
            **{"cycle_momentum": True, "max_momentum": 0.95},
        },
        lambda o: L.CyclicLR(o, LR / 4, LR, 5, mode="exp_range", gamma=0.97, max_momentum=0.95),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_schedule_equals_torch_at_every_step(case):
    said, make = CASES[case]
    decided = shape(**said)
    expected, momenta = torchs(make)
    equal(ours(decided), expected)
    cycled = momentum(decided)
    if cycled is not None:
        equal([cycled(step) for step in range(STEPS)], momenta)
    else:
        assert set(momenta) == {0.9}


EPOCHS = STEPS // 10
PER_EPOCH = {
    "linear": ({}, lambda o: L.LinearLR(o, 1.0, 0.0, EPOCHS)),
    "cosine": ({}, lambda o: L.CosineAnnealingLR(o, EPOCHS)),
    "cosine_restarts": ({"T_0": "2 epochs"}, lambda o: L.CosineAnnealingWarmRestarts(o, 2)),
    "step": ({"step_size": "2 epochs"}, lambda o: L.StepLR(o, 2)),
    "multi_step": (
        {"milestones": ("1 epoch", "4 epochs")},
        lambda o: L.MultiStepLR(o, [1, 4]),
    ),
    "exponential": ({"gamma": 0.8}, lambda o: L.ExponentialLR(o, 0.8)),
    "polynomial": ({"power": 0.9}, lambda o: L.PolynomialLR(o, EPOCHS, power=0.9)),
    "one_cycle": ({}, lambda o: L.OneCycleLR(o, LR, total_steps=EPOCHS)),
    "cyclic": (
        {"step_size_up": "1 epoch", "step_size_down": "2 epochs"},
        lambda o: L.CyclicLR(o, LR / 4, LR, 1, 2, cycle_momentum=False),
    ),
}


@pytest.mark.parametrize("name", PER_EPOCH)
def test_interval_of_an_epoch_equals_torch_stepped_once_an_epoch(name):
    said, make = PER_EPOCH[name]
    decided = shape(name=name, interval="1 epoch", **said)
    expected, momenta = torchs(make, every=10)
    equal(ours(decided), expected)
    if name == "one_cycle":
        equal([momentum(decided)(step) for step in range(STEPS)], momenta)


@pytest.mark.parametrize(("warmup", "start"), [(20, 20), (15, 10)], ids=["whole", "not whole"])
def test_momentum_is_the_highest_until_the_interval_in_which_the_cycle_starts(warmup, start):
    lengths = {"step_size_up": "1 epoch", "step_size_down": "2 epochs", "cycle_momentum": True}
    decided = shape(name="cyclic", interval="1 epoch", warmup=f"{warmup} steps", **lengths)
    rates, momenta = torchs(
        lambda o: L.CyclicLR(o, LR / 4, LR, 1, 2, max_momentum=0.9), STEPS - start, every=10
    )
    equal(ours(decided)[warmup:], rates[warmup - start :])
    equal([momentum(decided)(step) for step in range(STEPS)], [0.9] * start + momenta)


def test_cycle_begins_at_the_whole_step_that_its_start_is_a_hair_above():
    """Ten cycles of 0.26 epochs, which are 2.6 steps, are 26.000000000000004 steps."""
    decided = shape(name="cosine_restarts", T_0="0.26 epochs", save_cycles=True)
    at, whole = lr_factor(decided), (13, 26, 39, 52)
    assert restarts(60.0, T_0=2.6, T_mult=1, cycles=None)[10] > 26
    assert len(restarts(1.0, T_0=0.1, T_mult=1, cycles=None)) == 11  # ten of them are below 1
    assert [at(step) for step in whole] == pytest.approx([1.0] * 4)
    assert all(at(step - 1) < 0.4 for step in whole)
    assert set(whole) < set(cycle_ends(decided))


def test_step_falls_at_the_whole_step_that_its_length_is_a_hair_above():
    """Five lengths of 0.46 epochs, which are 4.6 steps, are 23.000000000000004 steps."""
    decided = shape(name="step", step_size="0.46 epochs", gamma=0.5)
    assert 5 * decided.curve_options["step_size"] > 23
    equal(ours(decided), [LR * 0.5 ** (10 * step // 46) for step in range(STEPS)])


BODIES = {
    "linear": ({}, lambda o, steps: L.LinearLR(o, 1.0, 0.0, steps)),
    "cosine": ({"min_lr_ratio": 0.1}, lambda o, steps: L.CosineAnnealingLR(o, steps, 0.1 * LR)),
    "cosine_restarts": (
        {"T_0": "9 steps"},
        lambda o, steps: L.CosineAnnealingWarmRestarts(o, 9),
    ),
    "step": ({"step_size": "11 steps"}, lambda o, steps: L.StepLR(o, 11)),
    "exponential": (
        {"gamma": 0.9, "interval": "1 step"},
        lambda o, steps: L.ExponentialLR(o, 0.9),
    ),
    "polynomial": ({"power": 2}, lambda o, steps: L.PolynomialLR(o, steps, power=2)),
}


@pytest.mark.parametrize("warmup", [1, 8])
@pytest.mark.parametrize("name", BODIES)
def test_warmup_equals_torch_linear_lr_before_the_schedule(name, warmup):
    said, make = BODIES[name]
    expected, _ = torchs(
        lambda o: SEQUENCE(
            o, [L.LinearLR(o, 1 / warmup, 1.0, warmup), make(o, STEPS - warmup)], [warmup]
        )
    )
    equal(ours(shape(name=name, warmup=f"{warmup} steps", **said)), expected)


@pytest.mark.parametrize("warmup", [3, 5])
def test_warmup_of_at_most_one_interval_rises_at_every_step(warmup):
    decided = shape(name="exponential", gamma=0.9, interval="5 steps", warmup=f"{warmup} steps")
    expected, _ = torchs(lambda o: L.LinearLR(o, 1 / warmup, 1.0, warmup), steps=5)
    assert ours(decided, 5) == pytest.approx(expected, rel=1e-12)


def test_warmup_that_ends_within_an_interval_rises_at_every_step_and_the_curve_begins_before():
    """It takes 8 steps; the curve counts intervals of 5 from the first of them that is whole."""
    decided = shape(name="exponential", gamma=0.5, interval="5 steps", warmup="8 steps")
    rising, _ = torchs(lambda o: L.LinearLR(o, 1 / 8, 1.0, 8), steps=8)
    falling = [LR] * 2 + [LR * 0.5 ** (1 + step // 5) for step in range(10)]
    equal(ours(decided, 20), rising + falling)


@pytest.mark.parametrize("warmup", [0, 4])
def test_inverse_square_root_falls_from_the_peak_after_the_warmup(warmup):
    decided = shape(name="inverse_sqrt", timescale="7 steps", warmup=f"{warmup} steps")
    falling = [LR / (1 + step / 7) ** 0.5 for step in range(STEPS - warmup)]
    equal(ours(decided)[warmup:], falling)


@pytest.mark.parametrize(("interval", "first"), [("1 step", 0.1), ("5 steps", 0.5)])
def test_milestones_count_from_the_start_of_the_run(interval, first):
    said = {"name": "multi_step", "milestones": ("20 steps",), "warmup": "10 steps"}
    at = lr_factor(shape(interval=interval, **said))
    assert [round(at(step), 12) for step in (0, 10, 19, 20, 59)] == [first, 1, 1, 0.1, 0.1]


SHAPES = {"linear": lambda s: 1 - s, "1-sqrt": lambda s: 1 - s**0.5}
SHAPES["cosine"] = lambda s: (1 + math.cos(math.pi * s)) / 2


@pytest.mark.parametrize("fall", SHAPES)
def test_rate_stays_at_the_peak_and_falls_over_the_decay(fall):
    decided = shape(name="warmup_stable_decay", decay="12 steps", decay_shape=fall)
    equal(ours(decided), [LR] * 48 + [LR * SHAPES[fall](step / 12) for step in range(12)])


def test_constant_schedule_has_factor_one():
    assert {lr_factor(shape())(step) for step in range(STEPS)} == {1.0}


def test_warmup_ends_at_the_peak():
    at = lr_factor(shape(warmup="5 steps"))
    assert [at(step) for step in range(6)] == pytest.approx([0.2, 0.36, 0.52, 0.68, 0.84, 1.0])


@pytest.mark.parametrize("warmup", [1, 4])
def test_warmup_rises_from_the_share_that_is_set(warmup):
    at = lr_factor(shape(warmup=f"{warmup} steps", warmup_start=0.2))
    rising = [0.2 + 0.8 * step / warmup for step in range(warmup)]
    assert [at(step) for step in range(warmup + 2)] == pytest.approx([*rising, 1.0, 1.0])


def test_min_lr_mode_scales_the_curve_or_clips_it():
    scaled = lr_factor(shape(40, name="cosine", min_lr_ratio=0.1))
    cut = lr_factor(shape(40, name="cosine", min_lr_ratio=0.1, min_lr_mode="cut"))
    assert scaled(40) == cut(40) == pytest.approx(0.1)
    assert cut(35) == 0.1 < scaled(35)
    assert cut(20) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "said",
    [
        {"name": "step", "step_size": "5 steps"},
        {"name": "exponential", "gamma": 0.5, "interval": "1 step"},
        {"name": "inverse_sqrt", "timescale": "1 step"},
        {"name": "multi_step", "milestones": ("10%", "20%")},
    ],
)
def test_unbounded_decay_stops_at_the_minimum(said):
    bare, floored = ours(shape(**said)), ours(shape(min_lr=0.2, **said))
    assert floored == [max(0.2, each) for each in bare]
    assert min(bare) < 0.2 == min(floored)


@pytest.mark.parametrize(
    "said",
    [
        *({"name": name} for name in ("linear", "cosine", "polynomial", "warmup_stable_decay")),
        {"name": "cosine_restarts", "cycles": 3},
    ],
)
def test_factor_is_constant_after_the_end(said):
    at = lr_factor(shape(40, min_lr_ratio=0.2, **said))
    assert at(41) == at(400) == at(40) == pytest.approx(0.2)


def test_warmup_over_the_full_run_never_exceeds_the_peak():
    at = lr_factor(shape(40, name="cosine", warmup="40 steps"))
    assert max(at(step) for step in range(41)) <= 1.0


def test_one_cycle_with_a_rise_of_one_step_starts_at_the_peak():
    at = lr_factor(shape(10, name="one_cycle", pct_start=0.1))
    assert at(0) == 1.0


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ({"name": "cosine_restarts", "cycles": 3}, (20, 40, 60)),
        ({"name": "cosine_restarts", "T_0": "1 epoch", "T_mult": 2}, (10, 30)),
        ({"name": "cosine_restarts", "cycles": 7, "warmup": "3 steps"}, None),
        ({"name": "cosine_restarts", "cycles": 3, "interval": "1 epoch"}, (20, 40, 60)),
        ({"name": "cyclic", "step_size_up": "9 steps"}, (18, 36, 54)),
    ],
)
def test_cycles_end_at_the_lowest_learning_rate(said, ends):
    found = cycle_ends(shape(save_cycles=True, **said))
    if ends is not None:
        assert found == ends
    else:
        assert found == tuple(math.ceil(3 + 57 * cycle / 7) for cycle in range(1, 8))
    assert cycle_ends(shape(**said)) == ()


@pytest.mark.parametrize("answer", [-0.1, math.inf, math.nan, None, "1", torch.ones(())])
def test_return_value_of_a_custom_schedule_is_checked(answer):
    with pytest.raises(TaskError, match="Return a finite number of at least 0"):
        make_lr_factor(ScheduleSpec("own", 10), PlateauState(), lambda steps_taken, total: answer)


def test_failing_custom_schedule_is_reported_with_its_call_signature():
    with pytest.raises(TaskError, match=r"TypeError.*called as schedule\(steps_taken, total\)"):
        make_lr_factor(ScheduleSpec("own", 10), PlateauState(), lambda steps_taken: 1.0)
    at = make_lr_factor(
        ScheduleSpec("own", 10), PlateauState(), lambda steps_taken, total: 1 - steps_taken / total
    )
    assert [at(step) for step in (0, 5)] == [1.0, 0.5]


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, int, float])
def test_custom_schedule_value_becomes_a_float(kind):
    at = make_lr_factor(ScheduleSpec("own", 10), PlateauState(), lambda steps_taken, total: kind(1))
    assert type(at(0)) is float


def test_schedule_that_is_not_a_function_is_rejected():
    with pytest.raises(TaskError, match="schedule is a str, not a function"):
        make_lr_factor(ScheduleSpec("own", 10), PlateauState(), "cosine")


def test_custom_schedule_is_checked_at_every_step():
    at = make_lr_factor(
        ScheduleSpec("own", 10), PlateauState(), lambda step, total: -1 if step == 4 else 1
    )
    with pytest.raises(TaskError, match="-1 for steps_taken=4 and total=10"):
        at(4)


def test_lr_summary_has_first_peak_and_last():
    found = lr_summary(shape(40, name="cosine", warmup="4 steps"), lr=LR)
    assert found["first"] == pytest.approx(0.1)
    assert found["peak"] == pytest.approx(0.4)
    assert 0 < found["last"] < 0.01
    assert lr_summary(ScheduleSpec("reduce_on_plateau", 10), lr=LR)["last"] is None
    falling = {"first": LR, "peak": LR, "last": pytest.approx(LR / 10)}
    assert lr_summary(ScheduleSpec("linear", 10), lr=LR) == falling
    assert lr_summary(ScheduleSpec("linear", 1), lr=LR) == {"first": LR, "peak": LR, "last": LR}


def test_plateau_scales_every_rate_as_it_is_when_it_is_asked():
    decided, plateau = ScheduleSpec("reduce_on_plateau", 10, warmup=4), PlateauState()
    at, plain = make_lr_factor(decided, plateau, None), lr_factor(decided)
    for plateau.scale in (1.0, 0.5):
        assert [at(step) for step in range(10)] == [plateau.scale * plain(s) for s in range(10)]
