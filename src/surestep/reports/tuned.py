"""The table of the tuning that chose the options of a run."""

from collections.abc import Mapping
from typing import Any

_ABOUT = ("date", "device", "cpus", "torch", "folder")


def describe_tuned(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rungs of a tuning, as its tuned.toml had them; None if the run has no such table.

    Args:
        config: of the run; anyone may have changed that file.
    """
    tuned = config.get("tuned", {})
    table = tuned.get("rungs")
    if not isinstance(table, list) or not all(isinstance(row, list) for row in table):
        return None
    if len(table) < 2 or len(set(map(len, table))) > 1:
        return None
    columns, *rows = [[str(cell) for cell in row] for row in table]
    about = [f"{name} {tuned[name]}" for name in _ABOUT if name in tuned]
    return {"about": ", ".join(about), "columns": columns, "rows": rows}
