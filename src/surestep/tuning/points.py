"""Samplers whose points follow from the seed and the number of the trial alone: grid and Sobol.

Optuna's own ones count trials in the storage, so two workers can get the same point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from surestep.tuning.space import Space


class FixedSampler(BaseSampler):
    """Proposes a point that is already known."""

    def __init__(self, space: Space, point: Mapping[str, Any]) -> None:
        self._distributions = space.distributions()
        self._point = space.stored(point)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all dimensions."""
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the point."""
        return self._point

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return one coordinate of the point."""
        return self._point[param_name]


def draw_grid_point(
    space: Space, seed: int, number: int, first: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the combination of a trial: the first ones, then all others as the seed decides."""
    indices = [space.grid_index(point) for point in first]
    order = np.random.default_rng(seed).permutation(space.grid_size)
    order = np.concatenate([indices, order[~np.isin(order, indices)]])
    return space.grid_point(int(order[number % len(order)]))


def draw_sobol_point(space: Space, seed: int, number: int) -> dict[str, Any]:
    """Return a point of the scrambled Sobol sequence that the seed decides.

    Source: https://docs.scipy.org/doc/scipy/reference/generated/scipy.stats.qmc.Sobol.html
    """
    from scipy.stats.qmc import Sobol

    # `seed`, as Optuna passes it: with `rng` of the same value, SciPy scrambles differently.
    sequence = Sobol(len(space.dimensions), scramble=True, seed=seed % 2**32)
    if number:
        sequence.fast_forward(number)
    shares = sequence.random(1)[0]
    pairs = zip(space.dimensions, shares, strict=True)
    return space.point_of(dimension.value_at(float(share)) for dimension, share in pairs)
