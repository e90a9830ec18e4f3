"""The interval of a ratio of times: exact for normal noise, and honest over a whole ladder."""

import math
import random

import pytest

from surestep.tuning.speed.interval import (
    LOOKS,
    compare_rounds,
    compute_interval,
    find_t,
    share_error,
)


@pytest.mark.parametrize(
    ("freedom", "error", "value"),  # of printed tables of Student's t
    [
        (1, 0.05, 12.706),
        (2, 0.05, 4.303),
        (5, 0.01, 4.032),
        (5, 0.001, 6.869),
        (10, 0.05, 2.228),
        (11, 0.001, 4.437),
        (23, 0.02, 2.500),
        (120, 0.05, 1.980),
    ],
)
def test_quantile_of_t_is_that_of_the_tables(freedom, error, value):
    assert find_t(freedom, error) == pytest.approx(value, abs=6e-4)


def test_interval_is_that_of_the_logarithms():
    found = compute_interval([0.5, 1.0, 2.0], 0.05)
    half = 4.3027 * math.log(2) / math.sqrt(3)
    assert found.ratio == pytest.approx(1)
    assert math.log(found.high) == pytest.approx(half, rel=1e-4)
    assert math.log(found.low) == pytest.approx(-half, rel=1e-4)
    assert (found.rounds, found.wins) == (3, False)
    assert found.width == pytest.approx(found.high - 1)


def test_rounds_that_another_process_slowed_down_are_left_out():
    ratios = [0.5, 0.52, 0.48, 0.51, 0.49]
    clean, disturbed = (compute_interval([*ratios, last], 0.01) for last in (0.53, 5.0))
    assert disturbed.high == clean.high < 1
    assert disturbed.ratio == clean.ratio == pytest.approx(0.505, abs=1e-3)


def climb(rng, comparisons, effect, noise, slow=(1.3, 0.05)):
    """Return how many of the comparisons of a ladder are won."""
    error, (factor, often) = share_error(comparisons), slow

    def measure():  # another program runs in some of the windows
        before, after = (factor if rng.random() < often else 1.0 for _ in range(2))
        return effect * after / before * math.exp(rng.gauss(0, noise))

    found = [compare_rounds(measure, error, lambda: True) for _ in range(comparisons)]
    return sum(one.wins for one in found)


def test_ladder_of_a_against_a_wins_falsely_in_less_than_one_of_twenty():
    rng = random.Random(0)
    false = sum(climb(rng, 12, 1.0, 0.05) > 0 for _ in range(200))
    assert false <= 10


@pytest.mark.parametrize(
    ("effect", "slow", "most_missed"),
    [(0.9, (1.3, 0.05), 6), (0.8, (1.3, 0.05), 0), (0.9, (3.0, 0.1), 40), (0.6, (3.0, 0.1), 6)],
)
def test_rung_that_is_faster_is_found(effect, slow, most_missed):
    rng = random.Random(1)
    won = sum(climb(rng, 12, effect, 0.04, slow) for _ in range(10))
    assert won >= 120 - most_missed


def test_clear_win_and_a_clear_loss_end_at_the_first_look():
    for ratios in ([0.5, 0.51] * 12, [1.2, 1.1] * 12):
        rounds = iter(ratios)
        assert compare_rounds(lambda: next(rounds), 0.001, lambda: True).rounds == LOOKS[0]  # noqa: B023


def test_comparison_without_time_for_a_look_has_no_interval():
    rounds, times = iter([0.5] * 24), iter([True] * 3 + [False])
    assert compare_rounds(lambda: next(rounds), 0.001, lambda: next(times)) is None
