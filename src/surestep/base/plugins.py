"""Plug-ins: what installed packages add to surestep by an entry point."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from surestep.base.errors import ConfigError

OPTIONS = "surestep.options"
STRATEGIES = "surestep.strategies"
LOSSES = "surestep.losses"
SCHEDULES = "surestep.schedules"
OPTIMIZERS = "surestep.optimizers"


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages register in an entry point group."""
    return tuple(sorted(_plugins(group)))


def load_plugin(
    group: str, name: str, base: type | None = None, *, instance_of: type | None = None
) -> Any:
    """Import what a package registered under a name.

    Args:
        group: of entry points.
        name: of the plug-in.
        base: if given, it must be a subclass of this class.
        instance_of: if given, it must be an object of this class; if neither is, a function.

    Raises:
        KeyError: no installed package registers the name.
        ConfigError: it cannot be imported, or is something else.
    """
    entry = _plugins(group)[name]
    place = f"The entry point {name!r} of {group} ({entry.value})"
    try:
        found = entry.load()
    except Exception as error:  # whatever the plug-in's module raises
        raise ConfigError(f"{place} cannot be loaded: {type(error).__name__}: {error}") from error
    if instance_of is not None:
        if not isinstance(found, instance_of):
            raise ConfigError(
                f"{place} is a {type(found).__name__}. Register an object of "
                f"{instance_of.__module__}.{instance_of.__qualname__}."
            )
        return found
    if base is None and not callable(found):
        raise ConfigError(f"{place} is a {type(found).__name__}. Register a function.")
    if base is not None and not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(
            f"{place} is not a subclass of {base.__module__}.{base.__qualname__}. Register one."
        )
    return found


@cache
def _plugins(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}
