"""Rates that are suggested from curves whose answer is known, and curves that show none."""

import math

import numpy as np
import pytest

from surestep.engine.schedule.suggest_lr import RangeCurve, has_fallen, suggest_lr

STEPS = 100
RATES = np.geomspace(1e-6, 10, STEPS)
STABLE = 0.2  # gradient descent on the quadratic below diverges above this rate


def quadratic(seed: int, *, noise: float = 0.0, scale: float = 1.0, rates=RATES) -> RangeCurve:
    """Descend a quadratic whose largest curvature is 2 / STABLE, with noisy gradients."""
    generator = np.random.default_rng(seed)
    curvature = np.geomspace(0.1, 2 / STABLE, 20)
    x, losses = generator.standard_normal(20), []
    for rate in rates:
        losses.append(scale * (float(curvature @ x**2) / 2 + noise * generator.standard_normal()))
        x = x - rate * (curvature * x + noise * generator.standard_normal(20))
    return RangeCurve(list(rates), losses)


def like(losses) -> RangeCurve:
    return RangeCurve(list(RATES), list(losses))


def noise(seed: int, count: int = STEPS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_rate_is_below_the_limit_of_a_quadratic_and_near_it(noise, scale):
    found = suggest_lr([quadratic(seed, noise=noise, scale=scale) for seed in range(3)])
    assert STABLE / 20 < found.lr < STABLE
    assert found.spread == (min(found.by_seed), max(found.by_seed))
    assert found.spread[0] <= found.lr <= found.spread[1]


def test_losses_may_be_negative():
    curves = [quadratic(seed) for seed in range(3)]
    below = [RangeCurve(c.rates, [loss - 1e3 for loss in c.losses]) for c in curves]
    assert suggest_lr(below).lr == pytest.approx(suggest_lr(curves).lr, rel=0.2)


def test_early_noise_is_not_taken_for_a_fall():
    steep = [1.0 if step % 16 < 8 else 0.4 for step in range(40)] + [0.0] * (STEPS - 40)
    curves = []
    for seed in range(3):
        curve = quadratic(seed)
        start = curve.losses[0]
        curves.append(like(np.array(curve.losses) + 0.3 * start * np.array(steep) * noise(seed)))
    assert STABLE / 20 < suggest_lr(curves).lr < STABLE


@pytest.mark.parametrize(
    "curves",
    [
        [like(np.ones(STEPS))],
        [like(1 + 0.1 * noise(seed)) for seed in range(3)],
        [like(1 + RATES), like(2 + RATES)],
        [like(1 + 0.01 * noise(seed) + np.linspace(0, 5, STEPS)) for seed in range(3)],
    ],
    ids=["constant", "noise", "rising", "noisily-rising"],
)
def test_curve_without_a_fall_says_nothing(curves):
    found = suggest_lr(curves)
    assert found.lr is None
    assert found.why.startswith("the curves show no rate: the loss never falls")
    assert found.by_seed == (None,) * len(curves)
    assert found.spread is None


def test_curve_may_end_in_a_loss_that_is_not_finite():
    whole = quadratic(0)
    limit = int(np.argmax(RATES > 5 * STABLE))
    for last in (math.nan, math.inf):
        cut = RangeCurve(whole.rates[: limit + 1], [*whole.losses[:limit], last])
        assert suggest_lr([cut]).lr == pytest.approx(suggest_lr([whole]).lr, rel=1)


def test_loss_that_explodes_within_a_few_steps_does_not_still_fall():
    falls = quadratic(0).losses[: int(np.argmax(RATES > STABLE))]
    curve = RangeCurve(list(RATES[: len(falls) + 2]), [*falls, falls[0], 3 * falls[0]])
    assert STABLE / 20 < suggest_lr([curve]).lr < STABLE


def test_seed_that_diverges_at_once_is_left_out():
    curves = [quadratic(0), RangeCurve(list(RATES[:2]), [1.0, math.nan]), quadratic(1)]
    found = suggest_lr(curves)
    assert found.by_seed[1] is None
    assert STABLE / 20 < found.lr < STABLE
    found = suggest_lr([curves[1], curves[1], curves[0]])
    assert found.lr is None
    assert "only 1 losses are finite, and 10 are needed" in found.why


def test_short_curve_says_nothing():
    found = suggest_lr([quadratic(0, rates=np.geomspace(1e-3, 1, 9))])
    assert found.lr is None
    assert "only 9 losses are finite, and 10 are needed" in found.why


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [(1e-6, STABLE / 10, "test higher rates"), (STABLE / 10, 10, "test lower rates")],
)
def test_range_that_misses_the_fall_or_its_end_is_named(first, last, message):
    curve = quadratic(0, rates=np.geomspace(first, last, STEPS))
    found = suggest_lr([curve])
    assert found.lr is None
    assert message in found.why


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_suggestion_hardly_depends_on_the_number_of_steps(noise):
    lrs = [
        suggest_lr([quadratic(0, noise=noise, rates=np.geomspace(1e-6, 10, steps))]).lr
        for steps in (50, 400)
    ]
    assert max(lrs) < 2 * min(lrs)


def test_short_trainings_start_at_the_suggestion():
    found = suggest_lr([quadratic(0)])
    assert found.start == found.lr


@pytest.mark.parametrize("ends", [True, False])
def test_short_trainings_start_below_the_rise_of_a_loss_that_never_falls(ends):
    rise = 80
    losses = 2 + 0.1 * noise(0) + 5.0 * (np.arange(STEPS) >= rise)
    curve = RangeCurve(list(RATES[:rise]), list(losses[:rise])) if ends else like(losses)
    found = suggest_lr([curve, like(losses)] if ends else [curve])
    assert found.lr is None
    assert RATES[rise] / 20 < found.start < RATES[rise] / 7


def test_short_trainings_have_no_start_if_the_loss_neither_falls_nor_rises():
    assert suggest_lr([like(2 + 0.1 * noise(0))]).start is None
    assert suggest_lr([RangeCurve([0.1, 0.2], [1.0, math.nan])]).start is None


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (2 + 0.1 * noise(0), False),
        (2 - 0.01 * np.arange(STEPS) + 0.1 * noise(0), True),
        (2 + 0.01 * np.arange(STEPS) + 0.1 * noise(0), False),
        (np.full(STEPS, 2.0), False),
        ([2.0] * 50 + [math.nan] * 50, False),
        ([2.0, 1.0], False),
    ],
)
def test_training_has_fallen_if_it_ends_below_its_start_by_more_than_noise(losses, expected):
    assert has_fallen(list(losses)) is expected


def test_constant_rate_is_lower_than_the_peak_of_one_that_falls():
    curves = [quadratic(seed) for seed in range(3)]
    peak, constant = suggest_lr(curves), suggest_lr(curves, is_constant=True)
    assert constant.lr == pytest.approx(peak.lr / 2)
    assert constant.by_seed == pytest.approx([lr / 2 for lr in peak.by_seed])
    assert "for a constant rate" in constant.why
    assert "for a constant rate" not in peak.why


def test_suggestion_is_in_units_of_the_rates():
    curve = quadratic(0, noise=0.1)
    larger = RangeCurve([100 * rate for rate in curve.rates], curve.losses)
    assert suggest_lr([larger]).lr == pytest.approx(100 * suggest_lr([curve]).lr)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ([], "no curve"),
        ([RangeCurve([1.0, 2.0], [1.0])], "one loss for each rate"),
        ([RangeCurve([1.0], [1.0]), RangeCurve([2.0], [1.0])], "different rates"),
        ([RangeCurve([2.0, 1.0], [1.0, 1.0])], "do not rise"),
        ([RangeCurve([0.0, 1.0], [1.0, 1.0])], "do not rise"),
        ([RangeCurve([1.0, math.nan], [1.0, 1.0])], "do not rise"),
    ],
)
def test_what_is_not_a_curve_is_an_error(curves, message):
    with pytest.raises(ValueError, match=message):
        suggest_lr(curves)
