"""The page of the results."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.schedule import PartResult


def make_page(results: Sequence[PartResult], machine: Mapping[str, str]) -> str:
    """Write what was measured, on what, and what was not, with the reason."""
    lines = ["# surestep on a GPU", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    for group in _group(results):
        lines += ["", f"## {group[0].title.partition(':')[0]}", ""]
        lines += _make_table([row for result in group for row in result.rows])
        for result in group:
            if result.missing:
                what = "not complete" if result.rows else "not measured"
                lines.append(f"- {result.title}: {what}, since {result.missing}.")
    return "\n".join(lines) + "\n"


def _group(results: Sequence[PartResult]) -> list[list[PartResult]]:
    """Put the contestants of the step times together."""
    steps = [result for result in results if result.name.startswith("steps.")]
    others = [[result] for result in results if not result.name.startswith("steps.")]
    return [steps, *others] if steps else others


def _make_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row))
    body = [[_show(row.get(name, "")) for name in names] for row in rows]
    cells = [names, ["---"] * len(names), *body]
    return [f"| {' | '.join(line)} |" for line in cells] + [""]


def _show(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
