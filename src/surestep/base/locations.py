"""Where an option was set: on the command line, in a line of a file, in Python."""

import sys
from pathlib import Path
from types import FrameType

from surestep.base.user_code import is_recipe_file, is_surestep_file

COMMAND_LINE = "command line"
_RECORDED = "config.json"


def shown_place(option: str, place: str | None) -> str:
    """Return where an option was set, as error messages show it: "--optim.lr", "run.toml:7".

    In Python this is the file and line that called the library, or "" if there is none.
    """
    if place == COMMAND_LINE:
        return flag(option)
    return user_line() if place is None else place


def recorded_place(run: str) -> str:
    """Return where an option is that a run records, which anyone may have written."""
    return f"{run}/{_RECORDED}"


def is_recorded(place: str | None) -> bool:
    """Return whether an option was set by the record of a run folder, and not by the user."""
    return place is not None and Path(place).name == _RECORDED  # of a TOML file, there is a line


def flag(option: str) -> str:
    """Return the command-line flag of an option."""
    return f"--{option.replace('_', '-')}"


def set_where(place: str) -> str:
    """Return a location as part of a reason: "on the command line", "in run.toml:7"."""
    is_flag = place.startswith("--")  # a short form, such as --track
    return f"on the {COMMAND_LINE}" if is_flag or place == COMMAND_LINE else f"in {place}"


def user_line() -> str:
    """Return "recipe.py:12", the innermost line outside this library; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        ours = is_surestep_file(code) and not is_recipe_file(code)
        if not ours and not code.startswith("<") and module.partition(".")[0] != "pydantic":
            return f"{_short(code)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _short(path: str) -> str:
    """Return a path relative to the working directory if it is inside it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path
