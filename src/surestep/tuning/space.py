"""The space of a search: which options it sets, and the values that each may have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError, SurestepError
from surestep.base.locations import set_where
from surestep.config.config import LENGTHS, iter_options
from surestep.config.group import MAIN, Locations, placed
from surestep.config.optim import FIND
from surestep.tuning.conditions import parse_dimensions
from surestep.tuning.dimension import HOW, Dimension

if TYPE_CHECKING:  # optuna is optional, and torch is not needed to read a study
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

    from surestep.recipes.load import RecipeCall

MOST_POINTS = 1_000_000  # of a grid; their order is a permutation in memory


@dataclass(frozen=True)
class Space:
    """The dimensions of a search, in the order in which a trial chooses their values."""

    dimensions: tuple[Dimension, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The full names of the options."""
        return tuple(dict.fromkeys(dimension.name for dimension in self.dimensions))

    @cached_property
    def is_conditional(self) -> bool:
        """Whether not all trials have all dimensions."""
        return any(dimension.conditions for dimension in self.dimensions)

    def active(self, values: Mapping[str, Any]) -> dict[str, Dimension]:
        """Return the dimensions of a trial with these values, by the name of the option."""
        return {
            dimension.name: dimension
            for dimension in self.dimensions
            if dimension.name in values and dimension.is_active(values)
        }

    def choose(self, value_of: Callable[[Dimension], Any]) -> dict[str, Any]:
        """Return a value for each dimension of one trial, which they are chosen for in order."""
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if dimension.is_active(values):
                values[dimension.name] = value_of(dimension)
        return values

    def point_of(self, values: Iterable[Any]) -> dict[str, Any]:
        """Return what a trial chooses whose dimensions would all have these values, in order."""
        by_key = dict(zip((dimension.key for dimension in self.dimensions), values, strict=True))
        return self.choose(lambda dimension: by_key[dimension.key])

    def as_json(self) -> dict[str, Any]:
        """Return it as it is written in a file."""
        return {dimension.path: dimension.as_json() for dimension in self.dimensions}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Space:
        """Read what `as_json` returned.

        Raises:
            ConfigError: lists everything that is wrong.
        """
        faults: list[str] = []
        found = parse_dimensions(
            sorted(values.items()), str, lambda name, text: faults.append(f"{name}: {text}")
        )
        if faults:
            raise ConfigError("\n".join(faults))
        return cls(found)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distributions by its parameter."""
        return {dimension.key: dimension.distribution() for dimension in self.dimensions}

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Let the sampler of a trial choose a value for each option; return the values."""
        return self.choose(lambda dimension: dimension.suggest(trial))

    def values_of(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of what Optuna stores for a trial; other names stay as they are."""
        known = {dimension.key: dimension for dimension in self.dimensions}
        values = {}
        for key, value in stored.items():
            name = known[key].name if key in known else key
            values[name] = known[key].value_of(value) if key in known else value
        return values

    def stored(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a trial as Optuna stores them, by its parameter."""
        active = self.active(values)
        return {one.key: one.stored(values[name]) for name, one in active.items()}

    @property
    def grid_size(self) -> int:
        """Number of points of the grid.

        Raises:
            ConfigError: a dimension is continuous, or the grid has too many points.
        """
        faults = [
            f"{dimension.name} = {dimension.as_json()!r} has no finite number of values, and the "
            "sampler grid needs one. Use a list of choices, or uniform(low, high, step=...)."
            for dimension in self.dimensions
            if dimension.n_values is None
        ]
        if faults:
            raise ConfigError("\n".join(faults))
        size = self._count_points(0, {})
        if size > MOST_POINTS:
            raise ConfigError(
                f"The grid has {size:,} points, and at most {MOST_POINTS:,} are possible. Use "
                "--sampler qmc, or fewer values, such as int(16, 256, step=16)."
            )
        return size

    def grid_point(self, index: int) -> dict[str, Any]:
        """Return a point of the grid by its index, from 0 to `grid_size - 1`."""
        values: dict[str, Any] = {}
        for at, dimension in enumerate(self.dimensions):
            if not dimension.is_active(values):
                continue
            for own in range(dimension.n_values or 1):
                values[dimension.name] = dimension.nth(own)
                size = self._count_points(at + 1, values)
                if index < size:
                    break
                index -= size
        return values

    def grid_index(self, values: Mapping[str, Any]) -> int:
        """Return the index of a point of the grid."""
        index, before = 0, dict[str, Any]()
        for at, dimension in enumerate(self.dimensions):
            if not dimension.is_active(before):
                continue
            for own in range(dimension.n_values or 1):
                before[dimension.name] = dimension.nth(own)
                if before[dimension.name] == values[dimension.name]:
                    break
                index += self._count_points(at + 1, before)
        return index

    def _count_points(self, at: int, values: Mapping[str, Any]) -> int:
        """Return how many points the dimensions from `at` on have, after these values."""
        if at == len(self.dimensions):
            return 1
        dimension = self.dimensions[at]
        if not dimension.is_active(values):
            return self._count_points(at + 1, values)
        if dimension.name not in self._parents:
            return (dimension.n_values or 1) * self._count_points(at + 1, values)
        return sum(
            self._count_points(at + 1, {**values, dimension.name: dimension.nth(index)})
            for index in range(dimension.n_values or 1)
        )

    @cached_property
    def _parents(self) -> set[str]:
        """The names that conditions depend on."""
        return {one.name for dimension in self.dimensions for one in dimension.conditions}


def parse_space(values: Mapping[str, Any], locations: Locations, call: RecipeCall) -> Space:
    """Parse a space, and try its values in the Config and the recipe.

    Both ends of each range and a value between them are tried, and each choice.

    Args:
        values: of each option: text such as "log(1e-5, 1e-2)", or a list. Names are spelled as on
            the command line; groups may be nested.
        locations: where each was set, as errors show it ("space.toml:7").
        call: the recipe, with the options that are the same in all trials.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    if not values:
        raise ConfigError(
            "The space is empty. Set at least one option, such as optim.lr = "
            f'"log(1e-5, 1e-2)". {HOW}'
        )
    faults: list[str] = []
    places: dict[str, str] = {}
    typed = list(flatten(values))
    for name, _ in typed:
        if place := locations.get(name) or locations.get(name.rpartition(".")[0]):
            places[full_name(name)] = place

    def fault(name: str, text: str) -> None:
        full = full_name(name)
        faults.append(placed(full, f"{full}: {text}", places))

    space = Space(parse_dimensions(typed, full_name, fault))
    for dimension in space.dimensions:
        if dimension.conditions and dimension.path in places:
            places.setdefault(dimension.name, places[dimension.path])
    faults += _find_fixed(space.names, call, places)
    firsts = {dimension.name: dimension.probes()[0] for dimension in space.dimensions}
    for dimension in space.dimensions:
        faults += _try_probes(dimension, firsts, call, places)
    point = space.choose(lambda dimension: dimension.probes()[0])
    if not faults and (found := _try(point, firsts, call, places)):
        faults.append(found)
    if faults:
        raise ConfigError("\n".join(dict.fromkeys(faults)))
    return space


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested groups by full name."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def full_name(typed: str) -> str:
    """Return the full name of an option: "optim.weight-decay" is "optim.weight_decay"."""
    name = typed.replace("-", "_")
    return f"{name}.{MAIN[name]}" if name in MAIN else name


def _find_fixed(names: Collection[str], call: RecipeCall, places: Locations) -> Iterator[str]:
    """Yield a fault for each option that is also set for all trials."""
    recipe = f"recipe {call.recipe.name}"
    measured = "optim.lr" if call.config.optim.lr == FIND else None  # by each trial
    fixed = {
        name: place
        for name, place in call.set_options.items()
        if place != recipe or name == measured
    }
    for name in names:
        others = LENGTHS if name in LENGTHS else (name,)
        for other in others:
            where = "also there" if other in names and other != name else None
            if other in fixed:
                where = f"set {set_where(fixed[other])} for all trials"
            if where:
                also = "it" if other == name else other
                yield placed(
                    name, f"{name} is in the space, and {also} is {where}. Leave one out.", places
                )


def _try_probes(
    dimension: Dimension, firsts: Mapping[str, Any], call: RecipeCall, places: Locations
) -> list[str]:
    """Return what the Config and the recipe reject of a dimension."""
    name, probes = dimension.name, dimension.probes()
    if not name.startswith("task.") and name not in dict(iter_options()):
        probes = [dimension.as_json()]  # the error proposes it for the option that may be meant
    needs = {one.name: one.value for one in dimension.conditions}
    tried = [_try({**needs, name: value}, firsts, call, places) for value in probes]
    faults = [fault for fault in tried if fault]
    if dimension.kind in ("log", "uniform") and tried[1:-1] and "integer" in str(tried[1]):
        kind = "logint" if dimension.kind == "log" else "int"
        return [f"{tried[1]} Write {kind}({dimension.low:g}, {dimension.high:g})."]
    if dimension.kind != "choice":  # an end that was written rather than a value between
        return [fault for fault in (tried[0], tried[-1], *tried) if fault][:1]
    return faults


def _try(
    values: Mapping[str, Any], firsts: Mapping[str, Any], call: RecipeCall, places: Locations
) -> str | None:
    """Return why the Config or the recipe rejects values; None if they do not.

    `firsts` has a value for each parameter of the recipe that only the space sets.
    """
    arguments = {name: value for name, value in values.items() if name.startswith("task.")}
    options = {name: value for name, value in values.items() if name not in arguments}
    try:
        call.config.replace_options(options, places)
        if arguments:
            others = {name: value for name, value in firsts.items() if name.startswith("task.")}
            plain = {name.removeprefix("task."): v for name, v in {**others, **arguments}.items()}
            call.recipe.typed({**plain, **call.parameters}, places)
    except SurestepError as error:
        return str(error)
    return None
