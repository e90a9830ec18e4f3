"""The points that the first trials have: the recipe's own values, and those that the user adds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError, suggest_names
from surestep.tuning.space import Space, flatten, full_name

if TYPE_CHECKING:
    from surestep.recipes.load import RecipeCall
    from surestep.trainer.planning import PreparedTask
    from surestep.tuning.dimension import Dimension

Point = dict[str, Any]


def find_own_values(call: RecipeCall, planned: PreparedTask, space: Space) -> Point:
    """Return the values of the recipe's defaults, as they are decided without a search.

    Args:
        call: the recipe with the options that are the same for all trials.
        planned: of its defaults.
        space: what is searched.

    Raises:
        ValueError: one of them is outside of the space.
    """
    decided = {option: value for option, value, _ in planned.plan.decisions}
    defaults = {f"task.{name}": one.default for name, one in call.recipe.parameters.items()}

    def own(dimension: Dimension) -> Any:
        value = {**decided, **defaults}.get(dimension.name, inspect.Parameter.empty)
        if value is inspect.Parameter.empty:
            raise ValueError(f"{dimension.name} has no value in the recipe")
        return dimension.fit(value)

    return space.choose(own)


def parse_points(points: Sequence[Any], space: Space, place: str) -> list[Point]:
    """Check points, which may leave options to the sampler.

    Args:
        points: the values of each by the name of the option, spelled as in a space.
        space: what is searched.
        place: where they were set, as errors show it.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    faults: list[str] = []
    found = []
    for number, point in enumerate(points, 1):
        if not isinstance(point, Mapping):
            faults.append(f"{place}, point {number}: {point!r} is not a table of options.")
            continue
        values = {full_name(name): value for name, value in flatten(point)}
        made: Point = {}
        for dimension in space.dimensions:
            if dimension.name in values and dimension.is_active(made):
                try:
                    made[dimension.name] = dimension.fit(values[dimension.name])
                except ValueError as error:
                    faults.append(f"{place}, point {number}: {error}.")
                    made[dimension.name] = None
        for name in values.keys() - made.keys():
            known = [one for one in space.dimensions if one.name == name]
            text = f"{name} is not in the space. {suggest_names(name, space.names)}"
            if known:
                needs = " or ".join(one.describe_conditions() for one in known)
                text = f"{name} is in the space only if {needs}."
            faults.append(f"{place}, point {number}: {text}")
        found.append(made)
    if faults:
        raise ConfigError("\n".join(faults))
    return found


def drop_repeated(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points without those that are there before."""
    return tuple(point for at, point in enumerate(points) if point not in points[:at])
