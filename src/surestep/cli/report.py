"""`surestep report [RUN ...]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Annotated

import tyro

from surestep.base.errors import ConfigError, RunError
from surestep.base.paths import is_address
from surestep.base.text import print_escaped, print_json
from surestep.cli.live_report import serve_live
from surestep.cli.open_run import open_run
from surestep.cli.parse import command
from surestep.record.checkpoint_ref import is_run
from surestep.record.io import dumps
from surestep.record.run import Run
from surestep.record.runs import find_runs, newest_run

_RUNS = Path("runs")
_OF_STUDY = "runs.html"


@command("report")
def run(
    folders: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN")] = (),
    /,
    *,
    out: str | None = None,
    json: bool = False,
    redact: bool = False,
    animate: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None,
    live: bool = False,
    port: int | None = None,
) -> int:
    """Write a page that shows a run: its curves, findings, time and options; or compare runs.

    The page is one file, report.html in the run folder. It works offline, and requests nothing.
    That of several runs is report.html in the folder that has them all, or in this one.

    Args:
        folders: Run folders, addresses of mirrors, or folders of runs; by default the newest run
            in runs.
        out: The HTML file to write or replace.
        json: Print the numbers of the page as JSON, and write no page.
        redact: Leave out host, user, paths and environment.
        animate: Write the decision regions of one run as an animation, .webp or .gif, and no page.
        live: Serve the page on this machine until Ctrl-C, and print its address. It shows what the
            runs record as they do, and new runs in the folders.
        port: The port of the live page; by default a free one.
    """
    from surestep.reports.write import as_lists, describe, write_page

    if live:
        _check_live(out=out, json=json, animate=animate)
        return serve_live(folders or [str(newest_run(_RUNS))], port, redacted=redact)
    if port is not None:
        raise ConfigError("--port is the port of a live page. Add --live.")
    if json and out is not None:
        raise ConfigError("--json writes no page. Leave it or --out out.")
    names = list_runs(folders)
    if animate is not None:
        return _animate(names, Path(animate), out=out, json=json, redact=redact)
    with ExitStack() as stack:
        runs = {name: stack.enter_context(open_run(name)) for name in names}
        data = describe(runs, redacted=redact)
        if json:
            print_json(dumps(as_lists(data)))
            return 0
        path = _choose_path(folders, runs) if out is None else Path(out)
        write_page(path, data)
    print_escaped(str(path))
    return 0


def _animate(names: Sequence[str], path: Path, **options: object) -> int:
    """Write the animation of a run, and print its path."""
    from surestep.reports.animate import check_animation, write_animation

    for name, value in options.items():
        if value:
            raise ConfigError(f"--animate writes no page. Leave --{name} out.")
    if len(names) > 1:
        raise ConfigError(
            f"--animate shows one run, and there are {len(names)}: {names[0]}, {names[1]} and so "
            "on. Pass one of them."
        )
    check_animation(path)
    with open_run(names[0]) as opened:
        print_escaped(str(write_animation(opened, path)))
    return 0


def _check_live(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise ConfigError(f"--live serves a page and writes nothing. Leave --{name} out.")


def list_runs(folders: Sequence[str]) -> list[str]:
    """Return the runs that are typed, and those in the folders of runs that are.

    Raises:
        ConfigError: a name is empty.
        RunError: a folder does not exist, or has no runs.
    """
    names = []
    for name in folders or [str(newest_run(_RUNS))]:
        if not name:
            raise ConfigError("The name of a run is empty. Pass its folder.")
        path = Path(name)
        if is_address(name) or is_run(path) or not path.is_dir():
            names.append(name)  # opening it says what is wrong
            continue
        found = sorted(map(str, find_runs(path)))
        if not found:
            raise RunError(f"There is no run in {name}. Pass the folder of a run, or of runs.")
        names += found
    return list(dict.fromkeys(names))


def _choose_path(folders: Sequence[str], runs: Mapping[str, Run]) -> Path:
    from surestep.reports.write import PAGE

    if len(folders) == 1 and not is_address(folders[0]):
        folder = Path(folders[0])
        # A study has a page of its own there.
        return folder / (_OF_STUDY if (folder / "study.json").is_file() else PAGE)
    if len(runs) == 1:
        name, opened = next(iter(runs.items()))
        is_copy = is_address(name)  # whose folder is a temporary one
        return Path(f"{PurePosixPath(name).name}-{PAGE}") if is_copy else opened.path / PAGE
    return Path(PAGE)
