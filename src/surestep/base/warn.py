"""Warn with the line of the user's code that caused the warning."""

import contextlib
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path

from surestep.base.text import one_line

_OURS = (str(Path(__file__).parents[1]), contextlib.__file__)


def warn(text: str) -> None:
    """Warn at the innermost frame that is in neither surestep nor torch."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    inner = (*_OURS, str(Path(torch).parent)) if torch else _OURS
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inner):
        frame, level = frame.f_back, level + 1
    warnings.warn(one_line(text), stacklevel=level)


def place_of(error: BaseException) -> str:
    """Return file and line of the user's innermost frame in a traceback; "" if there is none."""
    paths = sysconfig.get_paths()
    others = (*_OURS, paths["stdlib"], paths["purelib"], paths["platlib"], "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""
