"""Leave out of a page who trained where."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# An address, an absolute path, or one that begins with a dot; items/s and val/loss are none.
_PATH = re.compile(
    r"(?:\b[A-Za-z][A-Za-z0-9+.-]*:/|~|(?<![\w.)\]/\\])\.\.?|(?<![\w.)\]])[A-Za-z]:(?=[\\/])"
    r"|(?<![\w.)\]]))"
    r"[\\/](?:[^\s\\/'\"<>|;,]+[\\/])*([^\s\\/'\"<>|;,]*)"
)
_QUOTED = re.compile(r"""(?<=(['"]))(?:\.{0,2}/|~)[^'"]*/([^'"/]+)/?(?=\1)""")  # it may have spaces
_LEFT_OUT = ("environment",)
_NO_TEXT = ("png",)  # base64, which may have what looks like a path
_GENERIC = ("root", "user", "")  # users that many machines have


def redact(data: Mapping[str, Any], paths: Iterable[str] = ()) -> dict[str, Any]:
    """Return the numbers of a page without host, user, paths and environment.

    Of a path its last part is left. Names of options, metrics and layers, values of options, and
    texts of samples stay.

    Args:
        data: what `describe` returns.
        paths: of the runs, as they were typed: relative ones look like other names.
    """
    clean = _make_cleaner(paths)
    kept = {name: {} if name in _LEFT_OUT else value for name, value in data.items()}
    return dict(_clean_texts(kept, clean))


def _make_cleaner(paths: Iterable[str]) -> Callable[[str], str]:
    typed = [path for path in paths if "/" in path and not path.startswith(("/", "~", "."))]
    relative = re.compile("|".join(map(re.escape, sorted(typed, key=len, reverse=True))) or "(?!)")
    names = [socket.gethostname()]
    with suppress(OSError, KeyError):  # a container can have a user without a name
        names += [name for name in (getpass.getuser(), Path.home().name) if name not in _GENERIC]
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, filter(None, names)))})\b")

    def clean(text: str) -> str:
        text = relative.sub(lambda match: f".../{match[0].rpartition('/')[2]}", text)
        text = _PATH.sub(r".../\1", _QUOTED.sub(r".../\2", text))
        return pattern.sub("...", text)

    return clean


def _clean_texts(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {
            clean(str(name)): inner if name in _NO_TEXT else _clean_texts(inner, clean)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_clean_texts(inner, clean) for inner in value]
    return value
