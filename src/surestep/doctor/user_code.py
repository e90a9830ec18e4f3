"""Distinguish the user's source from that of libraries, and find classes in it."""

from __future__ import annotations

import inspect
import sysconfig
from functools import cache
from pathlib import Path

from surestep.doctor.watcher import NOWHERE, Location

_PACKAGE = str(Path(__file__).parents[1])


def is_of_surestep(file: str) -> bool:
    """Return whether a file is of this package; a folder of the user may have its name too."""
    return file.startswith(_PACKAGE)


@cache
def is_of_user(file: str) -> bool:
    """Return whether a file is neither of a library nor of this package."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    paths = sysconfig.get_paths()
    libraries = (paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"])
    return not file.startswith((*libraries, _PACKAGE))


def locate_class(value: object) -> Location:
    """Return where the class of an object is in the user's source; NOWHERE if it is not there."""
    try:
        file = inspect.getsourcefile(type(value))
        if file is None or not is_of_user(file):
            return NOWHERE
        return Location(file, inspect.getsourcelines(type(value))[1])
    except (OSError, TypeError):
        return NOWHERE
