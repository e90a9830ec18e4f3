"""Findings: what the rules find in a run, by what was measured."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from surestep.base.secrets import describe_error
from surestep.base.warn import warn
from surestep.doctor.finding import SEVERITIES, Finding
from surestep.doctor.rule import list_codes, load_rule
from surestep.engine.data.make_source import LOADED
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.engine.task.task import Task
from surestep.record.run_writer import RunWriter
from surestep.trainer.review import of_data, of_run
from surestep.trainer.review.case import Case, Observed
from surestep.trainer.review.data_case import DataCase, read_data
from surestep.trainer.review.data_findings import (
    NAME,
    describe_sets,
    describe_setup,
    named_samples,
    read_findings,
    to_file,
)


class RunChecks(Part):
    """The rules inside a run: it shows errors at once, and returns all findings at the end.

    Attributes:
        observed: what was read at the log points.
        shown: the errors that this process showed when it found them.
    """

    def __init__(
        self,
        loop: Loop,
        task: Task,
        system: SystemInfo,
        recorder: RunWriter,
        print_line: Callable[[str], None],
    ) -> None:
        self.observed = Observed(loop.state.model, loop.plan)
        self.shown: list[Finding] = []
        self._loop, self._task, self._system = loop, task, system
        self._recorder, self._print_line = recorder, print_line
        self._of_data: list[Finding] = []
        self._next_check = 1

    def check_data(self, identity: Mapping[str, Any], *, is_resumed: bool) -> None:
        """Check the data before training, and show errors.

        Args:
            identity: of the run.
            is_resumed: whether to repeat what an earlier process found, if that is still true.
        """
        plan, task = self._loop.plan, self._task
        if not self._loop.world.is_first or plan.doctor_check_data == "off":
            return
        setup = describe_setup(identity, task, plan)
        known = read_findings(self._recorder.folder, setup, task, plan) if is_resumed else None
        if known is not None:
            self._of_data = known
            return
        data = open_data(self._loop, task)
        if data is None:
            return
        self._of_data = find_in_data(data)
        self._show(self._of_data)
        fast = [
            split.name for split in data.others if split.is_complete or len(split.rows) > LOADED
        ]
        samples: dict[str, list[int]] = {name: [] for name in fast}
        sets = describe_sets(task, plan, samples | named_samples(self._of_data))
        self._recorder.write(NAME, to_file(setup, sets, self._of_data))

    def on_log(self, state: State, point: LogPoint) -> None:
        """Add a log point, and show new errors: after the first, and when the steps doubled."""
        self.observed(point)
        if self.observed.steps < self._next_check or not self._loop.world.is_first:
            return
        self._next_check = 2 * self.observed.steps
        self._show(find(self._case(is_finished=False), only_errors=True))

    def at_end(self, *, is_finished: bool) -> list[Finding]:
        """Return all findings; an empty list on ranks other than the first."""
        if not self._loop.world.is_first:
            return []
        findings = self._of_data + find(self._case(is_finished=is_finished))
        return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))

    def _case(self, *, is_finished: bool) -> Case:
        observed, system, folder = self.observed, self._system, self._recorder.folder
        return Case(self._loop, self._task, observed, system, is_finished, folder)

    def _show(self, findings: list[Finding]) -> None:
        """Print errors, and write them to the events; a rule is shown once."""
        for finding in findings:
            if finding.severity == "error" and all(finding.rule != f.rule for f in self.shown):
                self.shown.append(finding)
                step = self._loop.state.progress.step
                self._recorder.event("finding", step=step, **asdict(finding))
                self._print_line(describe(finding))


def open_data(loop: Loop, task: Task) -> DataCase | None:
    """Read samples of the data; None if there are none, or if what they raise is a warning."""
    try:
        return read_data(loop, task, loop.plan)
    except Exception as error:  # of the user's objects
        warn(f"The data could not be checked: {describe_error(error)}.")
        return None


def find_in_data(data: DataCase) -> list[Finding]:
    """Return what the rules find in the data that are not ignored; what they raise is caught."""
    return _find(of_data, list_reviewed(of_data), data, data.plan)


def find(case: Case, *, only_errors: bool = False) -> list[Finding]:
    """Return what the rules find that are not ignored.

    What they raise is caught, since the end of the run must be written.
    """
    codes = of_run.WHILE_TRAINING if only_errors else list_reviewed(of_run)
    return _find(of_run, codes, case, case.loop.plan)


@cache
def list_reviewed(package: ModuleType) -> tuple[str, ...]:
    """Return the codes of the rules that have a module in a package."""
    return tuple(sorted(module.name.upper() for module in iter_modules(package.__path__)))


def _find(
    package: ModuleType, codes: Iterable[str], subject: Case | DataCase, plan: Plan
) -> list[Finding]:
    findings: list[Finding] = []
    for code in codes:
        if code in plan.doctor_ignore:
            continue
        try:
            problems = import_module(f"{package.__name__}.{code.lower()}").find(subject)
            findings += [load_rule(code).to_finding(problem) for problem in problems]
        except Exception as error:  # of the user's objects, or of a module that is broken
            text = f"This could not be checked: {describe_error(error)}."
            findings.append(Finding(code, list_codes()[code], "info", "", 0, 1, text))
    return findings


def describe(finding: Finding) -> str:
    """Return a finding as a line of output."""
    start = f"{finding.rule} {finding.name} ({finding.severity})"
    return f"{start}: {finding.message} {finding.fix}".rstrip()
