"""What a process is made of beside installed packages: the user's own modules, by their content."""

import os
import sys
import sysconfig
from hashlib import blake2b
from pathlib import Path
from typing import Any

_INSTALLED = tuple(f"{os.sep}{each}{os.sep}" for each in ("site-packages", "dist-packages"))
_SHIPPED = Path(__file__).parents[1]


def own_code(recipe: Any = None) -> dict[str, str]:
    """Return a hash of the file of each module that is the user's own, by the module's name.

    They are neither of the standard library nor installed nor ours. The script is `__main__`.

    Args:
        recipe: the path of a recipe's file, which is known by itself.
    """
    where = sysconfig.get_paths()
    other = (where["stdlib"], where["platstdlib"], where["scripts"], str(_SHIPPED))
    folders = tuple(f"{each}{os.sep}" for each in other)
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or not file.endswith(".py") or file == recipe:
            continue
        if file.startswith(folders) or any(each in file for each in _INSTALLED):
            continue
        try:
            found[name] = blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
        except OSError:  # gone since it was imported
            continue
    return found
