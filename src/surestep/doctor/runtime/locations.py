"""Find the line of the user's source that is being executed, or that defines a class."""

from __future__ import annotations

import inspect
import sys

from surestep.base.user_code import is_user_file
from surestep.doctor.problem import NOWHERE, Location


def find_location() -> Location:
    """Return the innermost line that is neither of a library nor of this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return NOWHERE


def locate_class(value: object) -> Location:
    """Return where the class of an object is in the user's source; NOWHERE if it is not there."""
    try:
        file = inspect.getsourcefile(type(value))
        if file is None or not is_user_file(file):
            return NOWHERE
        return Location(file, inspect.getsourcelines(type(value))[1])
    except (OSError, TypeError):
        return NOWHERE
