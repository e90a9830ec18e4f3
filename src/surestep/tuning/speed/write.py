"""The files of a tuning: tune.json, tuned.toml and the page."""

import json
import shlex
import time
from pathlib import Path
from typing import Any

from surestep.base.files import replace_file
from surestep.base.version import VERSION
from surestep.record.io import explain_write_errors, write_json
from surestep.reports.page import render_page
from surestep.tuning.speed.result import TuneResult
from surestep.tuning.speed.table import COLUMNS, list_steps, list_unused, summarize, tabulate_rungs
from surestep.tuning.toml import format_toml

RESULT, CONFIG, PAGE = "tune.json", "tuned.toml", "report.html"
TITLES = {True: "Knobs that keep the numbers", False: "Knobs that change the numbers"}
_FILES = ("search.css", "plots.js", "tune.js")


def write_result(folder: Path, result: TuneResult) -> None:
    """Replace tune.json, which has all that is known so far."""
    write_json(folder / RESULT, {**result.as_json(), "version": VERSION})


def write_config(folder: Path, result: TuneResult, recipe: str) -> Path:
    """Write the options that were kept, for `surestep train RECIPE --config tuned.toml`.

    Args:
        folder: of the tuning.
        result: what it found.
        recipe: as it is typed.
    """
    path = folder / CONFIG
    command = shlex.join(["surestep", "train", recipe, "--config", str(path)])
    lines = [f"# {command}".replace("\n", " ")]
    options = {**result.fixed, **result.list_options("kept")}
    lines += [f"{name} = {format_toml(value)}" for name, value in sorted(options.items())]
    if proposed := result.list_options("proposed"):
        lines.append("# These change the numbers; --allow numbers takes them:")
        lines += [f"# {name} = {format_toml(value)}" for name, value in sorted(proposed.items())]
    tuned = {
        "recipe": result.recipe,
        "surestep": VERSION,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "folder": str(folder.resolve()),
        **result.run.get("machine", {}),
    }
    lines += ["", "[tuned]", *(f"{name} = {format_toml(value)}" for name, value in tuned.items())]
    first, *rows = (tabulate_rungs(result, keeps_numbers=keeps) for keeps in TITLES)
    table = [COLUMNS, *first, *(row for rest in rows for row in rest[1:])]
    lines += ["rungs = [", *(f"  {format_toml(row)}," for row in table), "]"]
    with explain_write_errors(path, "folder", " with --out"), replace_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_page(folder: Path, result: TuneResult) -> Path:
    """Write the page."""
    path = folder / PAGE
    page = render_page(f"Speed of {result.recipe}", describe_page(result), _FILES)
    with explain_write_errors(path, "folder", " with --out"), replace_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def describe_page(result: TuneResult) -> dict[str, Any]:
    """Return the numbers of the page, as reports/assets/tune.js reads them."""
    return {
        "version": VERSION,
        "recipe": result.recipe,
        "sentences": list(summarize(result)),
        "steps": list_steps(result),
        "columns": COLUMNS,
        "tables": [
            {
                "title": title,
                "rows": tabulate_rungs(result, keeps_numbers=keeps_numbers),
                "unused": list_unused(result, keeps_numbers=keeps_numbers),
            }
            for keeps_numbers, title in TITLES.items()
        ],
        "curves": [
            {
                "title": ", ".join(f"{name}={json.dumps(v)}" for name, v in rung.options.items()),
                "without": rung.curves.without,
                "with": rung.curves.with_,
            }
            for rung in result.rungs
            if rung.curves is not None
        ],
    }
