"""Runs a script under the rules, alone or as one of several ranks."""

from __future__ import annotations

import builtins
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from surestep.base.noted_signals import NotedSignals
from surestep.base.temp_folders import make_temp_folder
from surestep.base.text import print_escaped
from surestep.base.user_code import is_surestep_file
from surestep.doctor.rule import Rule
from surestep.doctor.watch.guard import Guard
from surestep.doctor.watch.ranks import Ranks
from surestep.doctor.watch.report import Report, merge_reports

if TYPE_CHECKING:
    from surestep.doctor.watch.watch import WatchSession


class WatchedScript:
    """A script that is run under the rules.

    Args:
        rules: those without a run-time side are left out.
        most_steps: that are watched; None for all.
        show: called once with what was found, at the end, or before SIGTERM ends the process.
        write: called after it with the same.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        most_steps: int | None,
        show: Callable[[Report], None],
        write: Callable[[Report], None],
    ) -> None:
        self._rules, self._most_steps = rules, most_steps
        self._show, self._write = show, write
        self._ranks = Ranks.read(os.environ)
        self._guard = Guard()
        self._stderr = sys.stderr  # the script may replace it
        self._watch: WatchSession | None = None
        self._folder: Path | None = None  # for the reports of started processes

    def run(self, words: Sequence[str], *, is_module: bool) -> tuple[int, Report | None]:
        """Run a script with its arguments; return its exit code, and what was found.

        Another rank returns what was found on this one, if a launcher merges them: then it is None.
        """
        folders, hooks = ExitStack(), ExitStack()
        with self._guard:
            self._install(folders, hooks)
        watch = _call if self._watch is None else self._watch.run
        code = _run_script(words, watch, is_module=is_module)
        self._guard.has_ended = True
        with self._guard:
            hooks.close()
        try:
            with redirect_stderr(self._stderr):
                return code, self._finish(is_error=code != 0)
        finally:
            with suppress(OSError):
                folders.close()

    def _install(self, folders: ExitStack, hooks: ExitStack) -> None:
        """Prepare to watch the script and the processes that it starts."""
        with NotedSignals() as noted:  # torch may lose Ctrl-C while it is imported
            from surestep.doctor.watch.processes import watched_processes
            from surestep.doctor.watch.watch import WatchSession

            noted.send_again()
        self._watch = WatchSession(self._rules, self._most_steps, self._guard)
        self._folder = folders.enter_context(make_temp_folder())
        hooks.enter_context(self._report_at_sigterm())
        codes = tuple(rule.code for rule in self._rules)
        hooks.enter_context(watched_processes(codes, self._most_steps, self._folder))

    def _finish(self, *, is_error: bool) -> Report | None:
        """Show what was found, on rank 0 for all of them; return it there."""
        own = self._complete(Report([], 0, {}) if self._watch is None else self._watch.report())
        try:
            reports = self._ranks.collect(own, is_error=is_error)
        except Exception as error:  # of the store: the findings of this rank are shown
            reports = {self._ranks.rank: own}
            why = f"{type(error).__name__}: {error}"
            print_escaped(f"surestep watch: the ranks cannot be merged: {why}", file=sys.stderr)
        with self._guard:
            reports |= self._read_started()
        if not reports:  # another rank shows them
            return None
        report = own
        with self._guard:
            if reports != {0: own}:
                merge = merge_reports if self._watch is None else self._watch.merge
                report = merge(reports)
        report = self._complete(replace(report, has_failed=is_error))
        with self._guard:
            self._show(report)
        report = self._complete(report)
        self._write(report)
        return report

    def _complete(self, report: Report) -> Report:
        """Return a report with the step at which this process stopped watching, if it did."""
        is_known = report.stopped_at is not None
        return report if is_known else replace(report, stopped_at=self._guard.stopped_at)

    def _read_started(self) -> dict[int, Report]:
        """Return the reports of the processes that the script started."""
        if self._folder is None:
            return {}
        from surestep.doctor.watch.processes import read_reports  # imports torch

        return read_reports(self._folder)

    @contextmanager
    def _report_at_sigterm(self) -> Iterator[None]:
        """Show what was found before SIGTERM ends the process, unless the script handles it.

        Launchers end the other ranks with SIGTERM when one fails.
        """

        def report(number: int, _: object) -> None:
            signal.signal(number, signal.SIG_DFL)
            self._guard.has_ended = True
            try:
                with redirect_stderr(self._stderr):
                    self._finish(is_error=True)
                    sys.stderr.flush()
            finally:
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


def _call(function: Callable[[], object]) -> None:
    function()


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
    return not is_runpy and not is_surestep_file(file)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print_escaped(str(stop.code), file=sys.stderr)
    return 1
