"""`surestep watch`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.missing_torch import require_torch
from surestep.base.text import format_count, one_line, print_escaped
from surestep.cli.parse import parse
from surestep.cli.selectors import Selectors, check_selectors, split_commas
from surestep.cli.watched import WatchedScript
from surestep.doctor.finding import fails, to_json
from surestep.doctor.rule import Rule, load_rules
from surestep.doctor.selection import describe_broken, find_unknown, is_selected
from surestep.record.io import dumps

if TYPE_CHECKING:
    from surestep.doctor.watch.report import Report

_DESCRIPTION = (
    "Run a script unchanged, and report what is silently wrong in its training. Options of watch "
    "come before the script: surestep watch --steps 200 train.py --lr 0.1. The exit code is that "
    "of the script, or 1 if --fail-on says so."
)
_FLAGS = ("-m", "--module", "-h", "--help")
_COMPLETE = "complete"
_COLORS = {"error": "red", "warning": "yellow", "speed": "cyan", "info": "blue"}


@dataclass(frozen=True)
class _Options:
    script: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SCRIPT [ARGUMENT ...]")]
    """The script, or with -m the module, and its own arguments."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the findings to this file, as JSON."""
    fail_on: Literal["error", "warning", "never"] = "never"
    """Exit with 1 if there is a finding of this severity or a worse one, or watching failed."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Watch the first steps only."""
    select: Selectors = ()
    """Only these rules: codes, starts of codes, or names, with commas: `--select SS1,SS506`."""
    ignore: Selectors = ()
    """Not these rules."""
    module: Annotated[bool, tyro.conf.arg(aliases=["-m"])] = False
    """Run a module, as python -m does."""


_OPTIONS = [f"--{field.name.replace('_', '-')}" for field in fields(_Options)[1:]]  # not script
_WITH_VALUE = [option for option in _OPTIONS if option not in _FLAGS]


def run(words: list[str]) -> int:
    """Run a script, print the findings to stderr, and return the script's exit code."""
    own, script = _split(words)
    check_selectors([*own, *script[:1]])
    if not script and not {"-h", "--help"} & set(own):
        raise ConfigError("No script is given. Write it last: surestep watch train.py")
    options = parse(_Options, [*own, *script[:1]], "surestep watch", description=_DESCRIPTION)
    if not options.module:
        _require_script(options.script)
    if options.steps is not None and options.steps < 1:
        raise ConfigError(f"--steps {options.steps} is less than 1.")
    # The script may change the folder, and its training is lost if the file cannot be written.
    file = None if options.json is None else options.json.absolute()
    if file is not None and not file.parent.is_dir():
        raise ConfigError(f"There is no folder {str(file.parent)!r} for --json {options.json}.")
    rules, broken = _choose_rules(options.select, options.ignore)
    require_torch()
    for text in broken:
        print_escaped(f"surestep watch: {text}", file=sys.stderr)
    lost: list[OSError] = []

    def write(report: Report) -> None:
        try:
            _write(report, file)
        except OSError as error:
            lost.append(error)
            text = f"surestep watch: {file} cannot be written: {error.strerror or error}."
            print_escaped(text, file=sys.stderr)

    script_run = WatchedScript(rules, options.steps, _show, write)
    code, report = script_run.run(script, is_module=options.module)
    if code or report is None or options.fail_on == "never":
        return code
    is_bad = fails((found.severity for found in report.findings), options.fail_on)
    has_failed = bool(lost or broken or report.failures)
    return int(is_bad or has_failed or _describe_watching(report) != _COMPLETE)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of watch, and the script with its arguments.

    Raises:
        ConfigError: an option is not known, so whether a value follows it is not known either.
    """
    index, known = 0, (*_WITH_VALUE, *_FLAGS)
    while index < len(words) and words[index].startswith("-"):
        name = words[index].partition("=")[0].replace("_", "-")
        if name not in known:
            raise ConfigError(
                f"There is no option {name!r} of watch. {suggest_names(name, known)} Options of "
                "the script come after it."
            )
        index += 2 if name in _WITH_VALUE and "=" not in words[index] else 1
    return list(words[:index]), list(words[index:])


def _require_script(name: str) -> None:
    """Raise an error if a file does not exist, or is not a script."""
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"There is no file {name!r} in {Path.cwd()}.")
    if path.suffix == ".ipynb":
        raise ConfigError(
            f"{name} is a notebook, and watch runs scripts. Convert it first: jupyter nbconvert "
            f"--to script {shlex.quote(name)}"
        )


def _choose_rules(select: Sequence[str], ignore: Sequence[str]) -> tuple[list[Rule], list[str]]:
    """Return the selected rules, and a sentence for each that cannot be loaded."""
    rules = [rule for rule in load_rules() if rule.watcher is not None]
    selected, ignored = split_commas(select) or ["SS"], split_commas(ignore)
    for selector in (*selected, *ignored):
        is_known = any(is_selected(rule.code, rule.name, [selector]) for rule in rules)
        if not is_known and not describe_broken([selector]):
            unknown = find_unknown(selector)
            raise ConfigError(
                unknown
                or f"{selector}: watch cannot see this; `surestep explain {selector}` says "
                "which command can."
            )
    chosen = [
        rule
        for rule in rules
        if is_selected(rule.code, rule.name, selected)
        and not is_selected(rule.code, rule.name, ignored)
    ]
    return chosen, describe_broken(selected, ignored)


def _show(report: Report) -> None:
    """Print a report."""
    _print_findings(report)
    for rule, why in report.failures.items():
        print_escaped(f"{rule} is disabled by an error in it: {why}", file=sys.stderr)
    for note in report.notes:
        print_escaped(note, file=sys.stderr)


def _describe_watching(report: Report) -> str:
    """Return whether the steps of the script were watched, as the JSON says it."""
    if report.stopped_at is not None:
        return f"stopped at step {report.stopped_at}"
    return _COMPLETE if report.steps else "no step"


def _write(report: Report, file: Path | None) -> None:
    """Write a report to a file, as JSON."""
    if file is None:
        return
    watching = {"watching": _describe_watching(report), "disabled": report.failures}
    text = f"{dumps(to_json(report.findings) | watching, indent=1)}\n"
    file.write_text(text, encoding="utf-8")


def _print_findings(report: Report) -> None:
    """Print the findings, worst first, to stderr, or that there are none."""
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    ranks = f" on {report.ranks} ranks" if report.ranks > 1 else ""
    watched = f"in {format_count(report.steps, 'step')}{ranks}"
    if report.stopped_at is not None:
        on_rank = " on a rank" * (report.ranks > 1)
        watched = f"until step {report.stopped_at}, when watching stopped{on_rank}"
    if not report.findings:
        if report.stopped_at == 0 and report.ranks == 1:
            text = "watching stopped before the first step, so nothing was watched."
        elif report.steps:
            text = f"nothing found {watched}."
        elif report.has_failed:
            text = "the script ended before its first step, so nothing was watched."
        else:
            text = "no optimizer of PyTorch took a step in this process, so nothing was watched."
        console.print(f"surestep watch: {text}", markup=False)
        return
    count = format_count(len(report.findings), "finding")
    console.print(f"\nsurestep watch: {count} {watched}.", markup=False)
    for found in report.findings:
        color = _COLORS[found.severity]
        title = f"[{color}]{found.severity}[/{color}] {found.rule} {found.name}"
        location = escape(one_line(f"{found.file}:{found.line}"))
        since = f"since step {found.evidence['since_step']}"
        if (of_ranks := found.evidence.get("ranks")) is not None:
            from surestep.engine.distributed.rank_status import format_ranks  # imports torch

            since += f" on rank{'s' * (len(of_ranks) > 1)} {format_ranks(of_ranks)}"
        console.print(f"\n{title}  {location}  {since}")
        console.print(f"  {escape(one_line(found.message))}")
        console.print(f"  Instead: {escape(one_line(found.fix))}")
