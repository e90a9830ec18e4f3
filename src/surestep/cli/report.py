"""`surestep report [RUN]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.paths import is_address
from surestep.base.text import print_escaped, print_json
from surestep.cli.open_run import open_run
from surestep.cli.parse import command
from surestep.record.io import dumps
from surestep.record.runs import newest_run

_RUNS = Path("runs")


@command("report")
def run(
    folder: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None,
    /,
    *,
    out: str | None = None,
    json: bool = False,
) -> int:
    """Write a page that shows a run: its curves, findings, time and options.

    The page is one file, report.html in the run folder. It works offline, and requests nothing.

    Args:
        folder: Run folder, or the address of its mirror; by default the newest run in runs.
        out: The file to write or replace.
        json: Print the numbers of the page as JSON, and write no page.
    """
    from surestep.reports.describe_run import describe_run
    from surestep.reports.write import PAGE, as_lists, write_page

    name = str(newest_run(_RUNS)) if folder is None else folder
    with open_run(name) as opened:
        data = describe_run(opened, name)
        if json:
            print_json(dumps(as_lists(data)))
            return 0
        home = Path(f"{opened.name}-{PAGE}") if is_address(name) else opened.path / PAGE
        path = home if out is None else Path(out)
        write_page(path, data)
    print_escaped(str(path))
    return 0
