"""Find the line of the user's source that is being executed."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path

from surestep.doctor.watcher import NOWHERE, Location

_PACKAGE = str(Path(__file__).parents[2])


def find_location() -> Location:
    """Return the innermost line that is neither of a library nor of this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_of_user(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return NOWHERE


@cache
def _is_of_user(file: str) -> bool:
    """Return whether a file is neither of a library nor of this package."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    paths = sysconfig.get_paths()
    libraries = (paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"])
    return not file.startswith((*libraries, _PACKAGE))
