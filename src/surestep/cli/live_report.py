"""Serve the page of runs that changes while they run, for `surestep report --live`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from surestep.base.errors import ConfigError, RunError
from surestep.base.paths import is_address
from surestep.base.text import print_escaped
from surestep.record.checkpoint_ref import is_run
from surestep.record.io import read_json
from surestep.record.run import Run
from surestep.record.runs import find_runs
from surestep.record.schemas import STUDY

if TYPE_CHECKING:
    from surestep.reports.live.follow_run import RunFollower
    from surestep.reports.live.follow_runs import RunsFollower

_POLL_S = 1.0
_IDLE_S = 60.0  # after the last request of a page; then nothing is read until the next


def serve_live(folders: Sequence[str], port: int | None, *, redacted: bool) -> int:
    """Serve the live page of runs until Ctrl-C.

    Args:
        folders: run folders, and folders of runs, in which new runs may appear.
        port: to listen on; by default a free one.
        redacted: leave out host, user, paths and environment.

    Raises:
        ConfigError: one is an address, or the port cannot be used.
        RunError: the only run cannot be read, or there is no such folder.
    """
    from surestep.reports.live.server import serve
    from surestep.reports.write import LIVE_ASSETS

    follower = make_follower(folders, redacted=redacted)
    with log_once(), suppress(KeyboardInterrupt):  # the usual end
        if problem := follower.update():
            raise RunError(problem)
        with serve(follower.news, LIVE_ASSETS, port) as address:
            print_escaped(address)
            while True:
                follower.news.wait_for_page(_IDLE_S)
                follower.update()
                time.sleep(_POLL_S)
    print()  # after ^C
    return 0


@contextmanager
def log_once() -> Iterator[None]:
    """Log each message once, since the runs are read again and again."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_new = text not in seen
        seen.add(text)
        return is_new

    logger = logging.getLogger("surestep")
    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


def make_follower(folders: Sequence[str], *, redacted: bool = False) -> RunFollower | RunsFollower:
    """Return what follows a run, or several.

    Raises:
        ConfigError: one is an address.
        RunError: there is no such folder.
    """
    from surestep.reports.live.follow_run import RunFollower
    from surestep.reports.live.follow_runs import RunsFollower

    for name in folders:
        if is_address(name):
            raise ConfigError(
                f"--live reads run folders on this machine, and {name} is an address. Leave --live "
                "out, or run the command where the run is."
            )
        _check_folder(name)
    are_runs = {name: is_run(Path(name)) for name in folders}
    if list(are_runs.values()) == [True]:
        return RunFollower(Run(Path(folders[0])), folders[0], redacted=redacted)
    about = _describe_study(folders)
    return RunsFollower(partial(_list_now, are_runs), about, redacted=redacted)


def _check_folder(name: str) -> None:
    if not Path(name).is_dir():
        raise RunError(f"There is no folder {name}. Pass the folder of a run, or of runs.")


def _list_now(are_runs: Mapping[str, bool]) -> list[str]:
    """Return the runs that were typed, and those that are in the folders now."""
    names = []
    for name, is_one in are_runs.items():
        if not is_one:
            _check_folder(name)
        names += [name] if is_one else sorted(map(str, find_runs(Path(name))))
    return list(dict.fromkeys(names))


def _describe_study(folders: Sequence[str]) -> str:
    """Return the objectives, if the folder is that of a study."""
    path = Path(folders[0]) / "study.json"
    if len(folders) > 1 or not path.is_file():
        return ""
    objectives = read_json(path, STUDY)["objectives"]
    return "objective: " + ", ".join(f"{name} ({mode})" for name, mode in objectives)
