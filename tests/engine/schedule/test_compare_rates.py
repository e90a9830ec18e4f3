"""Which rates short trainings try, and which one their losses suggest."""

import math

import pytest

from surestep.engine.schedule import compare_rates
from surestep.engine.schedule.compare_rates import (
    RateTraining,
    average_end,
    find_spread,
    next_rate,
    suggest_trained,
)


def try_rates(loss_at, start=0.1):
    """Return the trainings that are made from a start, if the loss is a function of the rate."""
    trainings = []
    while (lr := next_rate(trainings, start)) is not None:
        trainings.append(RateTraining(lr, (loss_at(lr),)))
    return trainings


def suggest(losses, steps=10, total=10):
    rates = [0.1 * 3**number for number in range(len(losses))]
    trainings = [RateTraining(lr, (loss,)) for lr, loss in zip(rates, losses, strict=True)]
    return suggest_trained(trainings[::-1], steps, total)


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (0.1, [0.1, 0.1 / 3, 0.3]),
        (0.9, [0.1, 0.1 / 3, 0.3, 0.9, 2.7]),
        (100, [0.1, 0.1 / 3, 0.3, 0.9, 2.7]),
        (0.01, [0.1, 0.1 / 3, 0.3, 0.1 / 9, 0.1 / 27]),
    ],
)
def test_rates_follow_the_lower_loss_until_it_rises_or_five_are_tried(best, expected):
    trainings = try_rates(lambda lr: abs(math.log(lr / best)))
    assert [one.lr for one in trainings] == pytest.approx(expected)


def test_spread_is_that_of_the_seeds_alone():
    inf = math.inf
    losses = {0.1: (2.0, 3.0, inf), 0.3: (1.0, 2.0, inf), 0.9: (2.0, 1.0, inf)}
    trainings = [RateTraining(lr, of_seeds) for lr, of_seeds in losses.items()]
    assert find_spread(trainings, 10, 10) == pytest.approx((0.3, 0.9))
    assert find_spread([RateTraining(0.1, (inf, inf))], 10, 10) is None


def test_rates_fall_while_trainings_diverge():
    trainings = try_rates(lambda lr: math.inf if lr > 0.02 else 1.0)
    assert [one.lr for one in trainings] == pytest.approx([0.1, 0.1 / 3, 0.3, 0.1 / 9, 0.1 / 27])


@pytest.mark.parametrize(
    ("losses", "power"),
    [
        ([2.0, 1.0, 2.0], 1),
        ([1.0, 1.0, 2.0], 0.5),  # the mean of two that are equal
        ([2.0, 1.0, 1.0], 1.5),
        ([1.0, 1.0, 1.0], 1),
        ([2.0, 1.0, math.inf], 0.5),
        ([math.inf, 1.0, 2.0], 1.5),
        ([math.inf, 1.0, math.inf], 1),
        ([3.0, 2.0, 1.0], 2),
        ([1.0, 2.0, 3.0], 0),
        ([4.0, 1.0, 2.0], 1.25),
        ([-1.0, -2.0, -1.0], 1),
    ],
)
def test_suggestion_is_the_lowest_point_of_a_parabola(losses, power):
    lr, why = suggest(losses)
    assert lr == pytest.approx(0.1 * 3**power)
    side = {0: "lower", 2: "higher"}.get(power)
    beyond = f"; no {side} one was tried, which may be better" if side else ""
    text = "the rate with the lowest loss at the end of 3 short trainings of 10 steps"
    assert why == f"{text}{beyond}"


def test_seeds_count_by_their_mean_and_one_that_diverged_rules_out_a_rate():
    trainings = [
        RateTraining(0.1, (2.0, 2.0)),
        RateTraining(0.3, (1.0, 1.4)),
        RateTraining(0.9, (0.5, 1.9)),
        RateTraining(2.7, (0.1, math.inf)),
    ]
    lr, _ = suggest_trained(trainings, 10, 10)
    assert lr == pytest.approx(0.3 * 3**0.5)  # of two that are equal


@pytest.mark.parametrize(
    ("losses", "power", "equal"),
    [
        ([(1.3, 1.0, 1.2), (1.0, 1.2, 1.1), (1.2, 1.1, 1.2), (2.0, 2.1, 2.2)], 1, 3),
        ([(1.3, 1.0, 1.2), (1.0, 1.2, 1.1), (1.3, 1.5, 1.4), (2.0, 2.1, 2.2)], 0.5, 2),
        (
            [(9.0, 9.0, 9.0), (1.2, 1.4, 1.3), (1.0, 1.2, 1.1), (1.2, 1.4, 1.3)],
            2,
            1,
        ),  # always better
        ([(9.0, 9.0, 9.0), (1.0, 2.0, 3.0), (1.0, 1.9, math.inf), (9.0, 9.0, 9.0)], 0.5, 1),
    ],
)
def test_rates_that_are_equal_within_the_noise_of_their_seeds_count_by_their_middle(
    losses, power, equal
):
    rates = [0.1 * 3**number for number in range(len(losses))]
    trainings = [RateTraining(lr, of_rate) for lr, of_rate in zip(rates, losses, strict=True)]
    lr, why = suggest_trained(trainings, 10, 10)
    assert lr == pytest.approx(0.1 * 3**power, rel=0.02)
    start = "the rate with the lowest loss at" if equal == 1 else f"the middle of {equal} rates"
    assert why.startswith(start)


def test_no_rate_is_suggested_if_all_diverged():
    lr, why = suggest([math.inf] * 3)
    assert lr is None
    assert why == "all 3 short trainings diverged; test lower rates"


def test_longer_run_gets_a_lower_rate():
    same, double = suggest([2.0, 1.0, 2.0])[0], suggest([2.0, 1.0, 2.0], 10, 20)
    assert double[0] == pytest.approx(same * 0.5**compare_rates.LONGER)
    assert "for a run of 20" in double[1]
    longest = [suggest([2.0, 1.0, 2.0], 10, 10 * times)[0] for times in (10, 11, 1e6)]
    assert longest[0] < double[0]
    assert longest[1:] == [longest[0]] * 2  # nothing longer was measured


def test_end_of_a_training_is_its_last_fifth():
    assert average_end([5.0] * 8 + [1.0, 2.0]) == 1.5
    assert average_end([3.0]) == 3.0
