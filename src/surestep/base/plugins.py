"""Plug-ins: what installed packages add to surestep by an entry point."""

import warnings
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from surestep.base.errors import ConfigError

OPTIONS = "surestep.options"
STRATEGIES = "surestep.strategies"
LOSSES = "surestep.losses"
SCHEDULES = "surestep.schedules"
OPTIMIZERS = "surestep.optimizers"
TRACKERS = "surestep.trackers"
_GROUPS = (OPTIONS, STRATEGIES, LOSSES, SCHEDULES, OPTIMIZERS, TRACKERS)


def plugin_names(group: str, built_in: Iterable[str]) -> tuple[str, ...]:
    """Return the names that installed packages register in an entry point group.

    The names of `built_in` are left out, with a warning: a plug-in cannot replace what surestep
    has.
    """
    names = set(_plugins()[group])
    for name in sorted(names & set(built_in)):
        _warn_ignored(group, name)
    return tuple(sorted(names - set(built_in)))


@cache
def _warn_ignored(group: str, name: str) -> None:
    value = _plugins()[group][name].value
    warnings.warn(
        f"The entry point {name!r} of {group} ({value}) is ignored: surestep has its own {name!r}. "
        "Give it another name.",
        stacklevel=2,
    )


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
    entry = _plugins()[group][name]
    place = f"The entry point {name!r} of {group} ({entry.value})"
    try:
        found = entry.load()
    except Exception as error:  # whatever the plug-in's module raises
        raise ConfigError(f"{place} cannot be loaded: {type(error).__name__}: {error}") from error
    if instance_of is not None:
        fits, wanted = isinstance(found, instance_of), f"an object of {_full_name(instance_of)}"
    elif base is not None:
        fits = isinstance(found, type) and issubclass(found, base)
        wanted = f"a subclass of {_full_name(base)}"
    else:
        fits, wanted = callable(found), "a function"
    if not fits:
        raise ConfigError(f"{place} is not {wanted}, but {found!r}. Register {wanted}.")
    return found


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@cache
def _plugins() -> dict[str, dict[str, EntryPoint]]:
    """Return the plug-ins of each group by name; listing the installed packages takes 7 ms."""
    found = entry_points()
    return {group: {entry.name: entry for entry in found.select(group=group)} for group in _GROUPS}
