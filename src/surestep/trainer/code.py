"""What a process is made of beside installed packages: the user's own modules, by their content."""

import os
import sys
import sysconfig
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

_INSTALLED = tuple(f"{os.sep}{each}{os.sep}" for each in ("site-packages", "dist-packages"))
_SHIPPED = Path(__file__).parents[1]


def own_code(recipe: Any = None) -> dict[str, str]:
    """Return a hash of the file of each module that is the user's own, by the module's name.

    They are neither of the standard library nor installed nor ours. The script is `__main__`. A
    file that bears several names stands under the first.

    Args:
        recipe: the path of a recipe's file, which is known by itself.
    """
    where = sysconfig.get_paths()
    other = (where["stdlib"], where["platstdlib"], where["scripts"], str(_SHIPPED))
    folders = tuple(f"{each}{os.sep}" for each in other)
    files = _files()
    seen, found = {recipe}, {}
    for name, file in sorted(files.items()):
        top = files.get(name.partition(".")[0], file)  # torch puts what it compiles elsewhere
        if file in seen or _is_others(file, folders) or _is_others(top, folders):
            continue
        seen.add(file)
        try:
            found[name] = blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
        except (OSError, ValueError):  # gone since it was imported, or no name of a file
            continue
    return found


def _files() -> dict[str, str]:
    """Return the source files of all modules; one that is loaded when it is used stays unloaded."""
    found = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and isinstance(name, str) and name.isprintable():
            file = object.__getattribute__(module, "__dict__").get("__file__")
            if isinstance(file, str) and file.endswith(".py"):
                found[name] = file
    return found


def _is_others(file: str, folders: tuple[str, ...]) -> bool:
    return file.startswith(folders) or any(each in file for each in _INSTALLED)
