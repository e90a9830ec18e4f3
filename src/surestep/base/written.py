"""Format an option as a user types it: in Python, in TOML or on the command line."""

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Literal

Form = Literal["python", "toml", "cli"]
COMMAND_LINE = "command line"
_LINE_OF_FILE = re.compile(r"(?<!\.py):\d+$")
_PACKAGE = str(Path(__file__).parents[1])
_RECIPES = str(Path(_PACKAGE) / "recipes")  # treated like the user's own recipes


def form_of(place: str | None) -> Form:
    """Return the form of options at a location such as "run.toml:7"; None is Python."""
    if place == COMMAND_LINE:
        return "cli"
    return "toml" if place is not None and _LINE_OF_FILE.search(place) else "python"


def shown_place(option: str, place: str | None) -> str:
    """Return where an option was set, as error messages show it: "--optim.lr", "run.toml:7".

    In Python this is the file and line that called the library, or "" if there is none.
    """
    if place == COMMAND_LINE:
        return flag(option)
    return user_line() if place is None else place


def flag(option: str) -> str:
    """Return the command-line flag of an option."""
    return f"--{option.replace('_', '-')}"


def set_where(place: str) -> str:
    """Return a location as part of a reason: "on the command line", "in run.toml:7"."""
    return f"on the {place}" if place == COMMAND_LINE else f"in {place}"


def user_line() -> str:
    """Return "recipe.py:12", the innermost line outside this library; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        ours = code.startswith(_PACKAGE) and not code.startswith(_RECIPES)
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


def written(option: str, value: Any, form: Form, group: str = "") -> str:
    """Format an option and its value as a user types them.

    Args:
        option: full name, such as "optim.lr".
        value: the option's value.
        form: Python, TOML or the command line.
        group: in Python, the call it is typed into: "optim" for Optim(...), "" for Config(...).
    """
    above, _, name = option.rpartition(".")
    if form == "cli":
        return f"{flag(option)} {_word(value)}"
    if form == "toml":
        table = f" in [{above}]" if above else ""
        return f"{name} = {_toml(value)}{table}"
    setting = f"{name}={value!r}"
    if above == group:
        return setting
    if above:
        setting = f"{above}={_CLASSES.get(above, above.title())}({setting})"
    return f"Config({setting})" if group else setting


_CLASSES: Mapping[str, str] = {"early_stop": "EarlyStop"}


def _word(value: Any) -> str:
    """Format a value for the command line."""
    if isinstance(value, (list, tuple)):
        return shlex.quote(",".join(map(str, value)))
    return "off" if value is None else shlex.quote(str(value))


def _toml(value: Any) -> str:
    if value is None:
        return '"off"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
