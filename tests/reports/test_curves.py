"""A curve in a page has few points, all of its spikes, and every step near events."""

import base64

import numpy as np
import pytest

from surestep.reports.arrays import encode_steps, encode_values
from surestep.reports.curves import Chart, Curve, choose_windows, find_spikes, thin_chart

MILLION = 1_000_000
NUMPY = {"f4": "<f4", "f8": "<f8", "u2": "<u2", "u4": "<u4"}


def thin(curve, windows=(), ranges=2000):
    (found,) = thin_chart(Chart("loss", [curve]), windows, ranges)["curves"]
    return found


@pytest.fixture(scope="module")
def long():
    """A loss of a million steps with a spike of one step."""
    values = 1 / np.sqrt(np.arange(1, MILLION + 1)) + 0.01 * np.sin(np.arange(MILLION))
    values[654_320] = 50.0
    return Curve("train/loss", np.arange(1, MILLION + 1), values)


def test_spike_of_one_step_in_a_million_is_kept(long):
    found = thin(long)
    assert len(found["steps"]) <= 4000
    (at,) = np.flatnonzero(found["values"] == 50.0)
    assert found["steps"][at] == 654_321
    assert found["highest"] == {"step": 654_321, "value": 50.0}


def test_each_range_has_its_extremes_and_its_mean(long):
    found = thin(long, ranges=100)
    for number in range(100):
        part = long.values[number * 10_000 : (number + 1) * 10_000]
        near = (found["steps"] > number * 10_000) & (found["steps"] <= (number + 1) * 10_000)
        assert {part.min(), part.max()} <= set(found["values"][near])
        assert found["means"][number] == pytest.approx(part.mean())
        assert found["mean_steps"][number] == number * 10_000 + 1


def test_every_step_near_an_event_is_kept(long):
    found = thin(long, choose_windows([500_000], dense=1))
    near = (found["steps"] >= 499_900) & (found["steps"] < 500_100)
    assert found["steps"][near].tolist() == list(range(499_900, 500_100))
    np.testing.assert_array_equal(found["values"][near], long.values[499_899:500_099])


def test_windows_that_meet_are_one_and_the_most_important_events_come_first():
    assert choose_windows([1000, 1200, 5000], dense=1) == [(900, 1299), (4900, 5099)]
    events = [*range(10**6, 0, -1000)]
    windows = choose_windows(events, dense=3)
    assert len(windows) == 100
    assert windows[-1] == (999_900, 1_000_099)
    assert windows[0][0] == 10**6 - 99_000 - 100


def test_short_curve_has_all_values_and_no_means():
    curve = Curve("a", np.arange(4000), np.arange(4000.0))
    found = thin(curve)
    np.testing.assert_array_equal(found["values"], curve.values)
    assert len(found["means"]) == 0


def test_values_that_are_not_finite_are_counted_and_named():
    curve = Curve("a", np.arange(1, 6), np.array([1.0, np.nan, np.inf, 0.5, np.nan]))
    found = thin(curve)
    assert found["steps"].tolist() == [1, 4]
    assert found["not_finite"] == {"count": 3, "steps": [2, 3, 5]}
    assert (found["lowest"], found["highest"]) == (
        {"step": 4, "value": 0.5},
        {"step": 1, "value": 1.0},
    )
    assert found["last"] == {"step": 5, "value": None}
    nothing = thin(Curve("a", np.array([3]), np.array([np.nan])))
    assert (nothing["count"], nothing["lowest"], len(nothing["steps"])) == (1, None, 0)


def test_spike_is_found_and_noise_is_not(long):
    assert find_spikes(long)[0] == 654_321
    noise = np.random.default_rng(0).normal(size=100_000)
    assert find_spikes(Curve("a", np.arange(100_000), noise)) == []


def decode(encoded):
    return np.frombuffer(base64.b64decode(encoded["base64"]), NUMPY[encoded["type"]])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.5, -2.25, 0.0], "f4"),
        ([], "f4"),
        ([1e39, 1.0], "f8"),  # more than 32 bits can hold
        ([1e-42, 1.0], "f8"),  # less
        ([np.nan, 1.0], "f4"),
        ([2.0**24, 2.0**30], "f4"),
        ([2.0**24 + 1, np.inf], "f8"),  # an integer with more digits
    ],
)
def test_values_are_the_same_when_they_are_read(values, kind):
    encoded = encode_values(np.array(values, dtype=float))
    assert encoded["type"] == kind
    np.testing.assert_array_equal(decode(encoded), values)


@pytest.mark.parametrize(
    ("steps", "kind"),
    [([], "u2"), ([7], "u2"), ([1, 2, 65_537], "u2"), ([1, 65_538], "u4"), ([0, 2**33], "f8")],
)
def test_steps_are_the_same_when_they_are_read(steps, kind):
    encoded = encode_steps(np.array(steps, dtype=np.int64))
    assert (encoded["type"], encoded["count"]) == (kind, len(steps))
    read = encoded["first"] + np.concatenate([[0], np.cumsum(decode(encoded))])
    assert read[: len(steps)].tolist() == steps


def test_many_values_that_are_not_finite_are_marked_from_the_first_to_the_last():
    (count, steps) = thin(Curve("a", np.arange(5000), np.full(5000, np.nan)))["not_finite"].values()
    assert (count, len(steps), steps[0], steps[-1]) == (5000, 200, 0, 4999)
