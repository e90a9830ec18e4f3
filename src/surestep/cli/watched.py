"""Runs a script under the rules, alone or as one of several ranks."""

from __future__ import annotations

import builtins
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, TracebackType

from surestep.base.text import print_escaped
from surestep.doctor.rule import Rule
from surestep.doctor.watch.processes import read_reports, watched_processes
from surestep.doctor.watch.ranks import Ranks
from surestep.doctor.watch.report import Report
from surestep.doctor.watch.watch import Watch


class WatchedScript:
    """A script that is run under the rules.

    Args:
        rules: those without a run-time side are left out.
        most_steps: that are watched; None for all.
        show: called once with what was found, at the end, or before SIGTERM ends the process.
    """

    def __init__(
        self, rules: Sequence[Rule], most_steps: int | None, show: Callable[[Report], None]
    ) -> None:
        self._watch = Watch(rules, most_steps)
        self._codes = tuple(rule.code for rule in rules)
        self._most_steps = most_steps
        self._show = show
        self._ranks = Ranks.read(os.environ)

    def run(self, words: Sequence[str], *, is_module: bool) -> tuple[int, Report]:
        """Run a script with its arguments; return its exit code, and what was found."""
        with TemporaryDirectory(prefix="surestep-watch-") as name:
            folder = Path(name)
            with (
                self._report_at_sigterm(folder),
                watched_processes(self._codes, self._most_steps, folder),
            ):
                code = _run_script(words, self._watch.run, is_module=is_module)
            return code, self._finish(folder, is_error=code != 0)

    def _finish(self, folder: Path, *, is_error: bool) -> Report:
        """Show what was found, on rank 0 for all of them; return it."""
        own = self._watch.report()
        try:
            reports = self._ranks.collect(own, is_error=is_error)
        except Exception as error:  # of the store: the findings of this rank are shown
            reports = {self._ranks.rank: own}
            why = f"{type(error).__name__}: {error}"
            print_escaped(f"surestep watch: the ranks cannot be merged: {why}", file=sys.stderr)
        reports |= read_reports(folder)
        if not reports:  # another rank shows them
            return Report([], own.steps, {})
        merged = own if reports == {0: own} else self._watch.merge(reports)
        report = replace(merged, has_failed=is_error)
        self._show(report)
        return report

    @contextmanager
    def _report_at_sigterm(self, folder: Path) -> Iterator[None]:
        """Show what was found before SIGTERM ends the process, unless the script handles it.

        Launchers end the other ranks with SIGTERM when one fails.
        """

        def report(number: int, _: object) -> None:
            signal.signal(number, signal.SIG_DFL)
            self._finish(folder, is_error=True)
            sys.stderr.flush()
            os.kill(os.getpid(), number)

        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        signal.signal(signal.SIGTERM, report)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGTERM) is report:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run_script(
    words: Sequence[str], watch: Callable[[Callable[[], object]], None], *, is_module: bool
) -> int:
    """Run a script as Python would; return its exit code."""
    before = sys.argv, list(sys.path)
    if sys.path[:1] == [os.path.dirname(sys.argv[0])]:  # the folder of the command `surestep`
        del sys.path[0]
    sys.path.insert(0, str(Path.cwd() if is_module else Path(words[0]).resolve().parent))
    sys.argv = list(words)

    def run_script() -> None:
        if is_module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            _run_file(str(Path.cwd() / words[0]))

    try:
        watch(run_script)
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as error:
        trace = _drop_own_frames(error.__traceback__)
        print_escaped("".join(traceback.format_exception(error.with_traceback(trace))), sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.argv, sys.path[:] = before
    return 0


def _run_file(path: str) -> None:
    """Execute a file as the main module; runpy would write its path over the typed one."""
    main = ModuleType("__main__")
    main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main  # also later, when Python ends and calls what it registered
    exec(main.__loader__.source_to_code(Path(path).read_bytes(), path), vars(main))


def _drop_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package, and of what runs the script."""
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for part in reversed(frames):
        if _is_of_script(part.tb_frame.f_code.co_filename):
            kept = TracebackType(kept, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return kept


def _is_of_script(file: str) -> bool:
    is_runpy = file in (runpy.__file__, "<frozen runpy>")
    return not is_runpy and not file.startswith(str(Path(__file__).parents[1]))


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print_escaped(str(stop.code), file=sys.stderr)
    return 1
