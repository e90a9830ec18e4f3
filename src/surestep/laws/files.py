"""Keep the files of the user from a program that is trained many times over."""

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError

_CACHES = (".cache", "__pycache__")
_WRITES = os.O_WRONLY | os.O_RDWR


def protect_files(began: float) -> None:
    """Have this process raise instead of emptying, deleting or replacing a file of the user.

    Temporary files, caches, and what was written since the proof began are not protected.

    Args:
        began: when the proof began, in seconds of `time.time()`.
    """
    temporary = os.path.realpath(tempfile.gettempdir())

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and flags & os.O_TRUNC:
                check("overwrite", path)
        elif event == "os.remove":
            check("delete", arguments[0])
        elif event == "os.rename":
            check("replace", arguments[1])

    def check(action: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor
        absolute = os.path.realpath(os.fsdecode(path))
        is_temporary = absolute.startswith(temporary + os.sep)
        if is_temporary or any(name in Path(absolute).parts for name in _CACHES):
            return
        try:
            found = os.stat(absolute)
        except OSError:
            return
        if stat.S_ISREG(found.st_mode) and found.st_size and found.st_mtime < began:
            raise ConfigError(
                f"The program would {action} {absolute}, which was there before, in each of many "
                "runs, so it was stopped there. Have it write new files, or none while laws are "
                "proved."
            )

    sys.addaudithook(audit)
