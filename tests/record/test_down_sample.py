"""A curve with fewer points keeps its smallest and largest values."""

from itertools import pairwise

import numpy as np
import pytest

from surestep.record.down_sample import keep_extremes


def test_spike_of_one_step_in_a_million_is_kept():
    steps = np.arange(1, 1_000_001)
    values = np.random.default_rng(0).random(len(steps))
    values[654_320], values[123_455] = 50.0, -7.0
    kept, found = keep_extremes(steps, values, 2000)
    assert len(kept) <= 4000
    assert dict(zip(kept.tolist(), found.tolist(), strict=True)).items() >= {
        (654_321, 50.0),
        (123_456, -7.0),
    }
    assert np.array_equal(found, values[kept - 1])
    assert np.all(np.diff(kept) > 0)


@pytest.mark.parametrize("ranges", [1, 3, 7, 50])
def test_each_range_keeps_its_extremes(ranges):
    generator = np.random.default_rng(ranges)
    steps = np.sort(generator.choice(10_000, 500, replace=False))
    values = generator.integers(0, 20, 500).astype(float)  # with ties
    kept, found = keep_extremes(steps, values, ranges)
    edges = np.linspace(steps[0], steps[-1] + 1, ranges + 1)
    for low, high in pairwise(edges):
        all_of, left = ((s >= low) & (s < high) for s in (steps, kept))
        if not all_of.any():
            assert not left.any()
            continue
        assert (found[left].min(), found[left].max()) == (
            values[all_of].min(),
            values[all_of].max(),
        )
        assert left.sum() <= 2


def test_short_curve_keeps_all_but_what_is_not_finite():
    steps, values = np.arange(5), np.array([1.0, np.nan, 3.0, np.inf, -np.inf])
    kept, found = keep_extremes(steps, values, 10)
    assert (kept.tolist(), found.tolist()) == ([0, 2], [1.0, 3.0])
    kept, found = keep_extremes(steps[:0], values[:0], 10)
    assert (len(kept), len(found)) == (0, 0)
