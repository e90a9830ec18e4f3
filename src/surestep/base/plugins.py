"""Plug-ins: what installed packages add to surestep by an entry point."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

STRATEGIES = "surestep.strategies"


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages register in an entry point group."""
    return tuple(sorted(_plugins(group)))


def load_plugin(group: str, name: str) -> Any:
    """Import the object that a package registered under a name.

    Raises:
        KeyError: no installed package registers the name.
    """
    return _plugins(group)[name].load()


@cache
def _plugins(group: str) -> dict[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=group)}
