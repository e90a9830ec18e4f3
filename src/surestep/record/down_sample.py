"""Fewer points of a curve, with every spike of it."""

import numpy as np
from numpy.typing import NDArray


def keep_extremes(
    steps: NDArray[np.int64], values: NDArray[np.float64], ranges: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the smallest and the largest value in each of so many ranges of the steps.

    A curve with few points keeps them all. Values that are not finite are left out.

    Args:
        steps: of the values, (n,), in order.
        values: (n,).
        ranges: of equal length, from the first step to the last.

    Returns:
        The steps and values that are left, at most `2 * ranges`, in order.
    """
    is_finite = np.isfinite(values)
    steps, values = steps[is_finite], values[is_finite]
    if len(steps) <= 2 * ranges:
        return steps, values
    edges = np.linspace(steps[0], steps[-1] + 1, ranges + 1)
    starts = np.unique(np.searchsorted(steps, edges[:-1]))  # a range may have no step
    sizes = np.diff(np.append(starts, len(steps)))
    lowest, highest = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    at = np.union1d(*(_find_first(values, wanted, sizes) for wanted in (lowest, highest)))
    return steps[at], values[at]


def _find_first(
    values: NDArray[np.float64], wanted: NDArray[np.float64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where each range has its wanted value first."""
    at = np.flatnonzero(values == np.repeat(wanted, sizes))
    _, first = np.unique(np.repeat(np.arange(len(sizes)), sizes)[at], return_index=True)
    found: NDArray[np.int64] = at[first]
    return found
