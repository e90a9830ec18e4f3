"""What the page of a run has of the range tests that found its learning rate."""

import pytest

from surestep.reports.range_tests import describe_range_tests, find_range

CURVE = {"rates": [0.01, 0.1], "losses": [2.0, None]}
EVENT = {"event": "lr_find", "option": "optim.lr", "lr": 0.05, "why": "", "seeds": [3]}


def test_spread_of_the_seeds_is_beside_the_reason():
    found = describe_range_tests([{**EVENT, "curves": [CURVE], "spread": [0.02, 0.11]}])
    assert found["why"] == "; each seed alone suggests 0.02 to 0.11"
    assert describe_range_tests([{**EVENT, "curves": [CURVE], "spread": None}])["why"] == ""


def test_last_search_of_a_run_is_shown():
    events = [{**EVENT, "lr": 1.0, "curves": [CURVE]}, {**EVENT, "curves": [CURVE]}, {"event": "x"}]
    found = describe_range_tests(events)
    assert (found["lr"], found["seeds"], found["curves"]) == (0.05, [3], [CURVE])
    assert found["trainings"] == []
    assert describe_range_tests([{"event": "x"}]) is None


def test_short_trainings_are_shown_by_rising_rate():
    trainings = [{"lr": lr, "losses": [None, 1.0]} for lr in (0.3, 0.1)]
    found = describe_range_tests([{**EVENT, "curves": [CURVE], "trainings": trainings}])
    assert found["trainings"] == trainings[::-1]


@pytest.mark.parametrize(
    "more",
    [
        {"curves": 3},
        {"curves": []},
        {"curves": [{"rates": [], "losses": []}]},
        {"curves": [{"rates": [0.1], "losses": ["<b>"]}]},
        {"curves": [{"rates": [-1.0], "losses": [1.0]}]},
        {"curves": [CURVE], "lr": "fast"},
        {"curves": [CURVE], "seeds": None},
        {"curves": [CURVE], "trainings": [{"lr": "x", "losses": [1.0]}]},
    ],
)
def test_event_of_another_shape_is_left_out(more):
    assert describe_range_tests([{**EVENT, **more}]) is None


def test_axis_has_no_space_for_losses_that_diverged():
    assert find_range([[2.0] * 20 + [1.0, 400.0]]) == (1.0, 2.5)
    assert find_range([[None]]) == (0.0, 1.0)
