"""Warnings that name the line of the user's code they come from."""

import contextlib
import sys
import warnings
from pathlib import Path

_OURS = (str(Path(__file__).parents[1]), contextlib.__file__)


def warn(text: str) -> None:
    """Warn, with file and line of the innermost frame that is neither surestep's nor torch's."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    inner = (*_OURS, str(Path(torch).parent)) if torch else _OURS
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inner):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
