"""An option as it is typed: in Python, in TOML or on the command line."""

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
_RECIPES = str(Path(_PACKAGE) / "recipes")  # those that ship are read as a user's own are


def form_of(place: str | None) -> Form:
    """Return how an option is typed in a place, such as "run.toml:7"; None is Python."""
    if place == COMMAND_LINE:
        return "cli"
    return "toml" if place is not None and _LINE_OF_FILE.search(place) else "python"


def shown_place(option: str, place: str | None) -> str:
    """Return where an option was set, as an error names it: "--optim.lr", "run.toml:7".

    In Python it is the file and the line that called the library; nothing where there is none.
    """
    if place == COMMAND_LINE:
        return flag(option)
    return user_line() if place is None else place


def flag(option: str) -> str:
    """Return an option as a flag of the command line."""
    return f"--{option.replace('_', '-')}"


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
    """Return a path from the working directory where it is in it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


def written(option: str, value: Any, form: Form, group: str = "") -> str:
    """Return an option and its value as they are typed.

    Args:
        option: by its full name, "optim.lr".
        value: of the option.
        form: where it is typed.
        group: whose call it is typed into in Python: "optim" in Optim(...), "" in Config(...).
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
    """Return a value as a word of the command line."""
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
