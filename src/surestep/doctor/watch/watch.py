"""Watch code that trains: the rules look while it runs, and their findings come at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from surestep.doctor.finding import SEVERITIES, Finding
from surestep.doctor.rule import Rule
from surestep.doctor.watch.hooks import Monitor


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        findings: by severity, and then by the step since when.
        steps: of optimizers that were watched.
        failures: why a rule was disabled, by its code.
    """

    findings: list[Finding]
    steps: int
    failures: dict[str, str]


class Watch:
    """The rules that watch a script.

    Args:
        rules: those without a run-time side are left out.
        most_steps: that are watched; None for all.
    """

    def __init__(self, rules: Sequence[Rule], most_steps: int | None = None) -> None:
        self._rules = {rule.code: rule for rule in rules if rule.watcher is not None}
        self._watchers = {
            code: rule.watcher() for code, rule in self._rules.items() if rule.watcher
        }
        self._most_steps = most_steps
        self.monitor = Monitor(self._watchers, most_steps)

    def run(self, function: Callable[[], object]) -> None:
        """Call a function under the hooks."""
        with self.monitor.installed():
            function()

    def report(self) -> Report:
        """Return what the rules have seen so far."""
        findings: list[tuple[int, Finding]] = []
        for code, watcher in self._watchers.items():
            rule = self._rules[code]
            if code in self.monitor.listeners.failures:
                continue
            try:
                for seen in watcher.observe(self.monitor.run):
                    evidence = {"since_step": seen.since_step, **seen.evidence}
                    position = (seen.location.file, seen.location.line, 1)
                    described = (rule.code, rule.name, rule.severity)
                    found = Finding(*described, *position, seen.message, evidence, rule.fix)
                    findings.append((seen.since_step, found))
            except Exception as error:  # of the rule
                self.monitor.listeners.disable(code, error)
        findings.sort(key=lambda pair: (SEVERITIES.index(pair[1].severity), pair[0], pair[1].rule))
        listed = [finding for _, finding in findings]
        steps = self.monitor.run.step
        if self._most_steps is not None:
            steps = min(steps, self._most_steps)
        return Report(listed, steps, dict(self.monitor.listeners.failures))
