"""Find the line of the user's source that is being executed."""

from __future__ import annotations

import sys

from surestep.doctor.user_code import is_of_user
from surestep.doctor.watcher import NOWHERE, Location


def find_location() -> Location:
    """Return the innermost line that is neither of a library nor of this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_of_user(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return NOWHERE
