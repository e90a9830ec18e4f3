"""Curves of every state are named, and those of correct runs raise no alarm."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from surestep.doctor.curves.curve import Bins, Curve, Evaluations
from surestep.doctor.curves.name import name_curve
from surestep.doctor.curves.state import HEALTHY, TITLES
from tests.doctor.curves import generators

SEEDS = range(60)
FIND = {**generators.SICK, "plateau": generators.plateau}


def first(curve):
    return name_curve(curve)[0]


def by_steps(losses, **more):
    return Curve(np.arange(1.0, len(losses) + 1), np.asarray(losses, dtype=float), **more)


@pytest.mark.parametrize("shape", generators.SHAPES, ids=lambda shape: shape.__name__)
def test_curve_of_a_correct_run_raises_no_alarm(shape):
    names = [first(generators.healthy(seed, shape)).name for seed in range(100)]
    assert set(names) <= set(HEALTHY)
    assert names.count("unclear") <= 0.05 * len(names)


@pytest.mark.parametrize("name", FIND)
def test_state_is_found(name):
    states = [first(FIND[name](seed)) for seed in SEEDS]
    names = [state.name for state in states]
    wanted = ("diverging", "nonfinite") if name == "diverging" else (name,)
    assert sum(found in wanted for found in names) >= 0.9 * len(names)
    for state in states:
        if state.name == name:
            assert all(map(math.isfinite, state.evidence.values()))
            assert state.title.startswith(TITLES[name])


def test_step_is_that_of_the_best_evaluation():
    for seed in SEEDS:
        curve = generators.overfitting(seed)
        state = first(curve)
        losses = curve.evaluations.losses
        assert state.since_step == curve.evaluations.steps[np.argmin(losses)]
        assert state.evidence["best"] == losses.min()


def scale(curve, factor):
    found = curve.evaluations
    return replace(
        curve,
        losses=curve.losses * factor,
        evaluations=replace(found, losses=found.losses * factor),
    )


def shift(curve, by):
    found = curve.evaluations
    total = None if curve.total_steps is None else curve.total_steps + by
    evaluations = replace(found, steps=found.steps + by)
    return replace(curve, steps=curve.steps + by, evaluations=evaluations, total_steps=total)


def log_every(curve, interval):
    """Average the losses between log points; an interval without a finite loss has none."""
    count = len(curve.losses) // interval * interval
    parts = curve.losses[:count].reshape(-1, interval)
    finite = np.isfinite(parts)
    sums, counts = np.where(finite, parts, 0).sum(1), finite.sum(1)
    return replace(
        curve,
        steps=curve.steps[interval - 1 : count : interval],
        losses=np.where(counts > 0, sums / np.maximum(counts, 1), np.nan),
        rates=None if curve.rates is None else curve.rates[interval - 1 : count : interval],
    )


@cache
def draw():
    """Return curves of all states, each with the names of its states."""
    makers = (generators.healthy, *FIND.values())
    curves = [make(seed) for seed in range(15) for make in makers]
    return [(curve, names_of(curve)) for curve in curves]


def names_of(curve):
    return [state.name for state in name_curve(curve)]


@cache
def draw_without_classes():
    curves = [replace(curve, classes=None) for curve, _ in draw()]
    return [(curve, names_of(curve)) for curve in curves]


@pytest.mark.parametrize("factor", [1e-6, 10, 1e8])
def test_states_do_not_depend_on_the_size_of_the_loss(factor):
    for curve, names in draw_without_classes():
        assert names_of(scale(curve, factor)) == names


def test_being_stuck_depends_on_the_size_of_the_loss():
    for seed in SEEDS:
        assert first(scale(generators.stuck(seed), 10)).name != "stuck"


def test_states_do_not_depend_on_the_number_of_the_first_step():
    for curve, _ in draw():
        moved = name_curve(shift(curve, 12_345))
        states = name_curve(curve)
        assert [state.name for state in moved] == [state.name for state in states]
        for state, other in zip(states, moved, strict=True):
            if state.since_step is not None:
                assert other.since_step == state.since_step + 12_345


@pytest.mark.parametrize("interval", [2, 5, 10])
def test_states_do_not_depend_on_the_log_interval(interval):
    """A longer interval may have too few values; near a limit, the state may be another."""
    pairs = [(names[0], first(log_every(curve, interval)).name) for curve, names in draw()]
    known = [(every, logged) for every, logged in pairs if "unclear" not in (every, logged)]
    assert len(known) > len(pairs) / 2
    assert sum(every == logged for every, logged in known) >= 0.9 * len(known)
    for seed in range(40):
        assert first(log_every(generators.healthy(seed), interval)).is_healthy


@pytest.mark.parametrize("count", [0, 1, 2, 5, 19])
def test_few_values_are_never_named(count):
    for make in FIND.values():
        curve = make(3)
        finite = np.flatnonzero(curve.finite)[:count]
        short = replace(curve, steps=curve.steps[finite], losses=curve.losses[finite], rates=None)
        assert names_of(short) == ["unclear"]


def test_many_values_of_few_steps_are_never_named():
    assert names_of(Curve(np.linspace(1, 80, 400), np.full(400, 2.3))) == ["unclear"]


def test_one_bad_batch_is_not_divergence():
    for seed in range(20):
        curve = generators.healthy(seed, generators.exponential)
        losses = curve.losses.copy()
        losses[len(losses) // 2] = 1e9
        losses[len(losses) // 3] = np.nan
        assert first(replace(curve, losses=losses)).is_healthy


def test_loss_that_ends_as_nan_names_its_first_step():
    losses = np.exp(-np.arange(300) / 50)
    losses[250:] = np.nan
    state = first(by_steps(losses))
    assert (state.name, state.since_step) == ("nonfinite", 251)
    assert first(by_steps(np.full(30, np.nan))).since_step == 1


def test_step_that_ended_a_run_is_named_although_its_loss_is_not_recorded():
    state = first(by_steps([0.7, 0.6], failed_at=3))
    assert (state.name, state.since_step) == ("nonfinite", 3)
    assert first(by_steps([0.7, 6e9, 7e9], failed_at=4)).name == "diverging"


def test_early_explosion_is_named_although_the_loss_is_flat_after_it():
    losses = np.concatenate([[2.3, 2.4], np.geomspace(1e4, 3, 50), np.full(300, 2.36)])
    state = first(by_steps(losses, classes=10))
    assert (state.name, state.since_step) == ("diverging", 1)


@pytest.mark.parametrize("growth", [1.05, 1.2, 1.5])
def test_loss_that_grows_in_each_step_is_diverging(growth):
    assert first(by_steps(8.0 * growth ** np.arange(150.0))).name == "diverging"


def test_loss_that_first_rises_and_then_falls_is_not_diverging():
    """The loss of a contrastive model with a queue rises at first: the queue becomes harder."""
    t = np.linspace(0, 1, 1000)
    losses = np.where(t < 0.1, 6 + 20 * t, 8 - 1.5 * (t - 0.1))
    assert first(by_steps(losses)).is_healthy


def test_warm_restart_at_the_end_is_not_divergence():
    t = np.linspace(0, 1, 1000)
    losses = np.where(t < 0.7, np.exp(-4 * t), 0.85)
    rates = np.where(t < 0.7, 1 - t, 1.0)
    assert first(by_steps(losses, rates=rates)).is_healthy
    assert first(by_steps(losses, rates=np.full(1000, 1.0))).name == "diverging"


def test_flat_loss_is_not_named_while_the_rate_rises():
    losses = 2.3 * (1 + 0.01 * np.random.default_rng(0).normal(size=300))
    rising = np.linspace(0, 1e-3, 300)
    assert first(by_steps(losses, rates=rising, classes=10)).name == "unclear"
    assert first(by_steps(losses, rates=np.full(300, 1e-3), classes=10)).name == "stuck"
    assert first(by_steps(losses, rates=np.full(300, 1e-3))).name == "flat"


def test_flat_loss_of_a_continued_run_is_a_plateau():
    losses = 0.3 * (1 + 0.01 * np.random.default_rng(0).normal(size=300))
    assert first(by_steps(losses, has_start=False)).name == "plateau"


def test_noise_that_may_hide_a_fall_is_not_called_flat():
    losses = np.random.default_rng(0).gamma(1, size=120)
    assert first(by_steps(losses)).name == "unclear"


def test_noisy_loss_is_flat_only_if_the_noise_hides_no_fall_of_a_twelfth():
    names = {}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        state = first(by_steps(1 + rng.uniform(0.1, 0.4) * rng.normal(size=400)))
        if state.name in ("flat", "unclear"):  # another name is one by chance
            found = state.evidence
            hidden = max(found["first"] - found["lowest"], 0) + 2 * found["noise"]
            names[hidden / found["first"]] = state.name
    assert set(names.values()) == {"flat", "unclear"}
    assert len(names) >= 38
    assert {hidden: "flat" if hidden <= 0.08 else "unclear" for hidden in names} == names


@pytest.mark.parametrize(
    ("count", "first", "last", "part"),
    [
        (40, 0.6, 0.8, (24, 32)),
        (21, 0.5, 0.75, (10, 16)),
        (21, 0.75, 1, (15, 21)),
        (2, 0, 0.1, (0, 1)),
    ],
)
def test_level_is_the_mean_of_every_part_that_it_reaches_into(count, first, last, part):
    means = np.arange(float(count))  # whose medians of three are the same
    bins = Bins(means, means, np.zeros(count))
    assert bins.level(first, last).value == means[slice(*part)].mean()


@pytest.mark.parametrize("repeats", [1, 10], ids=["independent", "similar"])
def test_error_of_a_level_is_the_standard_error_of_its_mean(repeats):
    """The scatter within a bin does not show noise that neighboring steps share."""
    errors = []
    for seed in range(30):
        losses = np.random.default_rng(seed).normal(5, 1, size=400 // repeats).repeat(repeats)
        errors.append(by_steps(losses).bins.level(0, 1).error)
    assert np.mean(errors) == pytest.approx(1 / np.sqrt(400 / repeats), rel=0.2)


def test_flat_end_of_a_schedule_is_not_a_plateau():
    t = np.linspace(0, 1, 1000)
    losses = 1 + np.exp(-30 * t)
    assert first(by_steps(losses)).name == "plateau"
    decay = np.maximum(0, 0.5 - t)
    assert first(by_steps(losses, rates=decay)).name == "falling"
    after_warmup = np.minimum(decay, np.maximum(t, 1e-6)) + 1e-5
    assert first(by_steps(losses, rates=after_warmup)).name == "falling"


def validated(losses, scores=None, *, every=20, **more):
    count = len(losses) * every
    t = np.arange(count) / count
    steps = np.arange(every, count + 1.0, every)
    found = Evaluations(steps, np.asarray(losses, dtype=float), scores or {})
    return by_steps(np.exp(-6 * t), evaluations=found, **more)


def test_small_rise_of_the_validation_loss_is_not_overfitting():
    fall = [1, 0.5, 0.3, 0.2, *[0.1] * 5]
    assert first(validated([*fall, *np.linspace(0.1, 0.11, 20)])).name == "falling"
    assert first(validated([*fall, *np.linspace(0.1, 0.3, 20)])).name == "overfitting"


def test_few_evaluations_are_not_overfitting():
    assert first(validated([1, 0.5, 0.3, 0.4, 0.5, 0.6])).name == "falling"


def test_rising_validation_loss_with_a_far_better_accuracy_is_not_overfitting():
    losses = [1, 0.5, 0.3, *np.linspace(0.3, 0.5, 20)]
    rising = {"accuracy": np.linspace(0.5, 0.95, 23)}
    level = {"accuracy": np.full(23, 0.9)}
    assert first(validated(losses, rising)).name == "falling"
    assert first(validated(losses, level)).name == "overfitting"


def test_validation_far_below_training_is_named_if_nothing_explains_it():
    losses = np.exp(-6 * np.linspace(0.05, 1, 20)) / 50
    assert first(validated(losses, is_regularized=False)).name == "leaking"
    assert first(validated(losses, is_regularized=True)).name == "falling"
    assert first(validated(losses)).name == "falling"


def test_perfect_first_evaluation_is_named_only_early_in_the_run():
    losses, scores = np.full(20, 1e-4), {"accuracy": np.ones(20)}
    assert first(validated(losses, scores)).name == "leaking"
    assert first(validated(losses[:5], {"accuracy": np.ones(5)})).name == "falling"
    assert first(validated(losses, {"accuracy": np.full(20, 0.99)})).name == "falling"
    assert first(validated(losses, {**scores, "f1": np.full(20, 0.7)})).name == "falling"


@pytest.mark.parametrize(
    ("steps", "losses"), [([1, 2], [1]), ([2, 1], [1, 1]), ([1, 1], [1, 1]), ([[1, 2]], [[1, 2]])]
)
def test_arrays_that_do_not_fit_are_rejected(steps, losses):
    with pytest.raises(ValueError, match=r"steps (have|do not rise)"):
        Curve(np.array(steps, dtype=float), np.array(losses, dtype=float))
