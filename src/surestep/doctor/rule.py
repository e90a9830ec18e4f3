"""Rules: one module each, in the folder `rules`, or a folder with what only this rule uses.

A rule has at most 150 lines of code. What two rules share is in `source`, which follows a script,
or in `runtime`, which follows its run.

The docstring of a module is the page of its rule, with a script that has the mistake, under
`Wrong:`, and a correct one, under `Right:`. The name of the module is the code and the name:
`ss101_missing_zero_grad.py` is SS101, missing-zero-grad. It has

- `SEVERITY`;
- `FIX`: what to write instead, in one sentence;
- `check(program)`, which yields a `Problem` for each mistake in the source of a script;
- `FIXABLE = True` if some of its problems have edits, which `surestep check --fix` makes;
- a class `MissingZeroGradWatcher`, named after the rule, which observes a script while it runs;
- `REVIEWED = True` if `surestep.trainer.review` finds the mistake in runs of Trainer. A rule has
  one of the three, or more.

More scripts with and without the mistake are in `tests/doctor/rules/ss101/`.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING

from surestep.doctor import rules
from surestep.doctor.finding import Finding, Severity
from surestep.doctor.problem import Problem

if TYPE_CHECKING:
    from surestep.doctor.source.trace import Program
    from surestep.doctor.watcher import Watcher


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        code: "SS101".
        name: "missing-zero-grad".
        severity: of its findings.
        summary: the first line of its page.
        page: the text.
        wrong: a script with the mistake.
        right: a correct script.
        fix: what to write instead.
        module: with its sides.
        watcher: its run-time side; None without one.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    page: str
    wrong: str
    right: str
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
            "train": hasattr(self.module, "REVIEWED"),
        }
        return tuple(command for command, is_in in has.items() if is_in)

    def check(self, program: Program) -> Iterator[Finding]:
        """Yield the findings in a script."""
        check: Callable[[Program], Iterator[Problem]] | None = getattr(self.module, "check", None)
        return map(self.to_finding, () if check is None else check(program))

    def to_finding(self, problem: Problem) -> Finding:
        """Return a problem that the rule found as a finding of the rule.

        An assumed problem is at most a warning, and is not fixed.
        """
        where, severity = problem.location, problem.severity or self.severity
        return Finding(
            self.code,
            self.name,
            "warning" if problem.assumed and severity == "error" else severity,
            where.file,
            where.line,
            where.column,
            problem.message,
            dict(problem.evidence),
            problem.fix or self.fix,
            where.end_column,
            where.source,
            () if problem.assumed else problem.edits,
            problem.assumed,
        )


@cache
def list_codes() -> dict[str, str]:
    """Return the name of each rule by its code, in order; the rules are not loaded."""
    modules = sorted(module.name for module in iter_modules(rules.__path__))
    parts = (module.partition("_") for module in modules)
    return {code.upper(): words.replace("_", "-") for code, _, words in parts}


def load_rules() -> tuple[Rule, ...]:
    """Return all rules that can be loaded, by their codes."""
    return _load_all()[0]


def list_broken() -> dict[str, str]:
    """Return a sentence for each rule that cannot be loaded, by its code."""
    return _load_all()[1]


@cache
def _load_all() -> tuple[tuple[Rule, ...], dict[str, str]]:
    loaded, broken = [], {}
    for code, name in list_codes().items():
        try:
            loaded.append(load_rule(code))
        except Exception as error:  # of the module: the other rules are used
            broken[code] = (
                f"{code} {name} is not used, since it cannot be loaded: {type(error).__name__}: "
                f"{error}. This is a bug of surestep: please report it."
            )
    return tuple(loaded), broken


@cache
def load_rule(code: str) -> Rule:
    """Return the rule of a code; no other one is loaded."""
    name = list_codes()[code]
    module = import_module(f"{rules.__name__}.{code}_{name}".replace("-", "_").lower())
    page, _, examples = _read_docstring(module).strip().partition("\n\nWrong:\n\n")
    wrong, right = (textwrap.dedent(text) for text in examples.split("\n\nRight:\n\n"))
    summary = page.partition("\n")[0]
    watcher = getattr(module, f"{name.title().replace('-', '')}Watcher", None)
    severity, fix = module.SEVERITY, module.FIX
    return Rule(code, name, severity, summary, page, wrong, right, fix, module, watcher)


def _read_docstring(module: ModuleType) -> str:
    """Return the docstring of a module, which `python -OO` does not keep."""
    if module.__doc__ is not None:
        return module.__doc__
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_bytes())
    return ast.get_docstring(tree, clean=False) or ""
