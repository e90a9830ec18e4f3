"""Rules: one module each, in the folder `rules`.

The docstring of a module is the page of its rule. Its name is the code and the name:
`ss101_missing_zero_grad.py` is SS101, missing-zero-grad. It has

- `SEVERITY`;
- `FIX`: what to write instead, in one sentence;
- `check(program)`, which yields a `Problem` for each mistake in the source of a script;
- `FIXABLE = True` if some of its problems have edits, which `surestep check --fix` makes;
- a class `Watch`, which observes a script while it runs;
- `inspect(data)`, which yields a `Remark` for each mistake in the data of a run of Trainer;
- `review(case)`, which yields a `Remark` for each mistake in a run of Trainer. A rule has one of
  the four, or more;
- `WATCH_SKIPS`: the names of examples that do not run on a CPU, that need another library, or whose
  mistake only the source shows;
- `CHECK_SKIPS`: the names of bad examples whose mistake shows only while they run;
- `bad_*()` functions, each with the mistake, and `good_*()` functions without it. They are shown on
  the page, and they are the tests of the rule.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING

from surestep.doctor import rules
from surestep.doctor.finding import Finding, Severity
from surestep.doctor.problem import Problem
from surestep.doctor.remark import Remark
from surestep.doctor.source.trace import Program
from surestep.doctor.watcher import Watcher

if TYPE_CHECKING:
    from surestep.doctor.case import Case
    from surestep.doctor.data_case import DataCase


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        code: "SS101".
        name: "missing-zero-grad".
        severity: of its findings.
        summary: the first line of its page.
        page: the whole text.
        fix: what to write instead.
        module: with its examples.
        watcher: its run-time side; None without one.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    page: str
    fix: str
    module: ModuleType
    watcher: Callable[[], Watcher] | None

    @property
    def is_fixable(self) -> bool:
        """Whether `surestep check --fix` can fix some of its findings."""
        return getattr(self.module, "FIXABLE", False)

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that find the mistake.

        "check" finds it in the source, "watch" while a script runs, "train" in a run of Trainer.
        """
        has = {
            "check": hasattr(self.module, "check"),
            "watch": self.watcher is not None,
            "train": hasattr(self.module, "review") or hasattr(self.module, "inspect"),
        }
        return tuple(command for command, is_in in has.items() if is_in)

    def check(self, program: Program) -> Iterator[Finding]:
        """Yield the findings in a script."""
        check: Callable[[Program], Iterator[Problem]] | None = getattr(self.module, "check", None)
        for problem in () if check is None else check(program):
            start, end, source = problem.file.mark(problem.at)
            file, line = problem.file.locate(getattr(problem.at, "lineno", 1))
            yield Finding(
                self.code,
                self.name,
                self.severity,
                file,
                line,
                start + 1,
                problem.message,
                problem.evidence or {},
                problem.fix or self.fix,
                end + 1,
                source,
                () if problem.file.is_notebook else problem.edits,
            )

    def inspect(self, data: DataCase) -> Iterator[Finding]:
        """Yield the findings in the data of a run of Trainer."""
        inspect: Callable[[DataCase], Iterator[Remark]] | None
        inspect = getattr(self.module, "inspect", None)
        return self._findings(() if inspect is None else inspect(data))

    def review(self, case: Case) -> Iterator[Finding]:
        """Yield the findings in a run of Trainer."""
        review: Callable[[Case], Iterator[Remark]] | None = getattr(self.module, "review", None)
        return self._findings(() if review is None else review(case))

    def _findings(self, remarks: Iterable[Remark]) -> Iterator[Finding]:
        for remark in remarks:
            yield Finding(
                self.code,
                self.name,
                remark.severity or self.severity,
                remark.location.file,
                remark.location.line,
                1,
                remark.message,
                dict(remark.evidence),
                remark.fix or self.fix,
            )

    def examples(self, kind: str) -> dict[str, Callable[[], object]]:
        """Return the functions of the module whose names start with `bad_` or `good_`."""
        return {
            name: value
            for name, value in vars(self.module).items()
            if name.startswith(f"{kind}_") and callable(value)
        }


@cache
def read_example(function: Callable[[], object]) -> str:
    """Return the body of an example as a script."""
    import inspect  # takes long to import, and checking needs no example

    lines = inspect.getsource(function).splitlines()
    return textwrap.dedent("\n".join(lines[1:]))


@cache
def list_codes() -> dict[str, str]:
    """Return the name of each rule by its code, in order; the rules are not loaded."""
    return {_split(module)[0]: _split(module)[1] for module in _list_modules()}


@cache
def load_rules() -> tuple[Rule, ...]:
    """Return all rules, by their codes."""
    return tuple(map(_load_rule, _list_modules()))


def _list_modules() -> list[str]:
    return sorted(module.name for module in iter_modules(rules.__path__))


def _split(module: str) -> tuple[str, str]:
    """Return the code and the name of a rule from those of its module."""
    code, _, words = module.partition("_")
    return code.upper(), words.replace("_", "-")


def _load_rule(name: str) -> Rule:
    module = import_module(f"{rules.__name__}.{name}")
    code, title = _split(name)
    page = (module.__doc__ or "").strip()
    summary = page.splitlines()[0]
    watcher = getattr(module, "Watch", None)
    return Rule(code, title, module.SEVERITY, summary, page, module.FIX, module, watcher)
