"""Warn with the line of the user's code that caused the warning."""

import contextlib
import sys
import traceback
import warnings

from surestep.base.text import one_line
from surestep.base.user_code import is_surestep_file, is_torch_file, is_user_file


def warn(text: str) -> None:
    """Warn at the innermost frame that is in neither surestep nor torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_inner(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(one_line(text), stacklevel=level)


def place_of(error: BaseException) -> str:
    """Return file and line of the user's innermost frame in a traceback; "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_user_file(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def _is_inner(file: str) -> bool:
    return is_surestep_file(file) or is_torch_file(file) or file == contextlib.__file__
