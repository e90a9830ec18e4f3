"""Watch code that trains: the rules look while it runs, and their findings come at the end."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from surestep.doctor.finding import Finding
from surestep.doctor.problem import Location, Problem
from surestep.doctor.rule import Rule
from surestep.doctor.suppress import drop_suppressed
from surestep.doctor.watch.guard import Guard
from surestep.doctor.watch.hooks import Monitor
from surestep.doctor.watch.listeners import Listeners
from surestep.doctor.watch.report import Report, merge_reports, sort_findings
from surestep.doctor.watcher import Watcher


class WatchSession:
    """The rules that watch a script.

    Args:
        rules: those without a run-time side are left out.
        most_steps: that are watched; None for all.
        guard: for the errors of this package; after one, code runs on unwatched.
    """

    def __init__(
        self, rules: Sequence[Rule], most_steps: int | None = None, guard: Guard | None = None
    ) -> None:
        self._guard = Guard() if guard is None else guard
        self._rules = {rule.code: rule for rule in rules if rule.watcher is not None}
        self._watchers: dict[str, Watcher] = {}
        self._monitor: Monitor | None = None
        with self._guard:
            self._watchers = {
                code: rule.watcher() for code, rule in self._rules.items() if rule.watcher
            }
            self._monitor = Monitor(self._watchers, most_steps, self._guard)

    def run(self, function: Callable[[], object]) -> None:
        """Call a function under the hooks."""
        if self._monitor is None or self._guard.stopped_at is not None:
            function()
            return
        with self._monitor.installed():
            try:
                function()
            finally:
                self._guard.has_ended = True

    def report(self) -> Report:
        """Return what the rules have seen so far."""
        report = Report([], 0, {})
        if self._monitor is not None:
            report = replace(report, steps=self._monitor.run.step)
            with self._guard:
                report = self._read(self._monitor)
        # Ranks that were not watched equally long cannot be compared.
        facts = report.facts if self._guard.stopped_at is None else {}
        return replace(report, facts=facts, stopped_at=self._guard.stopped_at)

    def _read(self, monitor: Monitor) -> Report:
        run, listeners = monitor.run, monitor.listeners
        facts: dict[str, Any] = {}
        findings, notes = self._observe(lambda code: self._watchers[code].observe(run), listeners)
        for code, watcher in self._watchers.items():
            try:
                known = watcher.report_rank(run)
            except Exception as error:  # of the rule
                listeners.disable(code, error)
            else:
                facts |= {code: known} if known is not None else {}
        return Report(findings, run.step, dict(listeners.failures), facts, notes=notes)

    def merge(self, reports: Mapping[int, Report]) -> Report:
        """Return one report of several ranks, by their numbers, with what differs between them."""

        def compare(code: str) -> Iterable[Problem]:
            facts = {rank: report.facts.get(code) for rank, report in reports.items()}
            known = {rank: fact for rank, fact in sorted(facts.items()) if fact is not None}
            watcher = self._watchers[code]
            return watcher.observe_ranks(known) if len(known) > 1 else ()

        if self._monitor is None:
            return merge_reports(reports)
        listeners = self._monitor.listeners
        merged = merge_reports(reports, *self._observe(compare, listeners))
        return replace(merged, failures=merged.failures | listeners.failures)

    def _observe(
        self, ask: Callable[[str], Iterable[Problem]], listeners: Listeners
    ) -> tuple[list[Finding], list[str]]:
        """Return the findings that no comment suppresses, and what is wrong with comments."""
        findings: list[Finding] = []
        for code, rule in self._rules.items():
            if code in listeners.failures:
                continue
            try:
                findings += [_to_finding(rule, seen) for seen in ask(code)]
            except Exception as error:  # of the rule
                listeners.disable(code, error)
        shown, notes = drop_suppressed(findings)
        return _first_of_lines(sort_findings(shown)), notes


def _first_of_lines(findings: list[Finding]) -> list[Finding]:
    """Return the first finding of each rule in each line: a loader may be made again there."""
    first: dict[tuple[str, str, int], Finding] = {}
    for found in findings:
        first.setdefault((found.rule, found.file, found.line), found)
    return list(first.values())


def _to_finding(rule: Rule, seen: Problem) -> Finding:
    file, line = seen.location.file, seen.location.line
    source = linecache.getline(file, line).rstrip()
    indent = len(source) - len(source.lstrip())
    end = len(source) + 1 if source else 0
    location = Location(_shorten(file), line, indent + 1, end, source)
    evidence = {"since_step": seen.since_step, **seen.evidence}
    return rule.to_finding(replace(seen, location=location, evidence=evidence))


def _shorten(file: str) -> str:
    """Return a path as it is from the current folder, if it is in it."""
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file
