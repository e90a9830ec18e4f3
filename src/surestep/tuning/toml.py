"""Write values as TOML, which the standard library only reads."""

import json
from collections.abc import Mapping
from typing import Any


def format_toml(value: Any) -> str:
    """Return a value as TOML; it has no null, so None is the text that surestep reads as None."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_toml, value))}]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(key)} = {format_toml(item)}" for key, item in value.items())
        return f"{{{inner}}}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
