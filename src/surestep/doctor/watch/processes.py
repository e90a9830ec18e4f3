"""Watch the processes that a script starts with `torch.multiprocessing.spawn`."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.multiprocessing.spawn  # noqa: F401 - a module that a function of its name hides

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.guard import Guard
from surestep.doctor.watch.report import Report
from surestep.doctor.watch.watch import WatchSession
from surestep.doctor.watch.wrap import replaced


@dataclass(frozen=True)
class WatchedFunction:
    """A function that a started process calls, under the hooks.

    Attributes:
        function: of the script.
        codes: of the rules.
        most_steps: that are watched; None for all.
        folder: for the report.
    """

    function: Callable[..., object]
    codes: tuple[str, ...]
    most_steps: int | None
    folder: str

    def __call__(self, index: int, *args: object) -> None:
        """Call the function, and write the report of this process."""
        guard, rules = Guard(), []
        with guard:
            rules = [rule for rule in load_rules() if rule.code in self.codes]
        watch = WatchSession(rules, self.most_steps, guard)
        try:
            watch.run(lambda: self.function(index, *args))
        finally:
            with guard:
                text = json.dumps(watch.report().to_json(), default=str)
                Path(self.folder, f"{index}.json").write_text(text, encoding="utf-8")


@contextmanager
def watched_processes(
    codes: tuple[str, ...], most_steps: int | None, folder: Path
) -> Iterator[None]:
    """Watch the processes that are started while the body runs.

    Args:
        codes: of the rules.
        most_steps: that are watched in each process; None for all.
        folder: for their reports.
    """

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def start_processes(fn: Any, *args: Any, **options: Any) -> Any:
            return original(WatchedFunction(fn, codes, most_steps, str(folder)), *args, **options)

        return start_processes

    module = sys.modules["torch.multiprocessing.spawn"]
    with replaced(module, "start_processes", wrap):
        yield


def read_reports(folder: Path) -> dict[int, Report]:
    """Return the reports of started processes, by their indices."""
    return {
        int(path.stem): Report.from_json(json.loads(path.read_text(encoding="utf-8")))
        for path in folder.glob("*.json")
    }
