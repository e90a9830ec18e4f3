"""`surestep check`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Union

import tyro

from surestep.base.errors import ConfigError
from surestep.base.text import print_escaped, print_json
from surestep.cli.parse import command
from surestep.doctor.cache import ResultCache, find_cache_folder
from surestep.doctor.check_files import check_files
from surestep.doctor.find_files import find_files
from surestep.doctor.finding import Finding
from surestep.doctor.report import FileReport
from surestep.doctor.selection import list_unchecked, select_codes
from surestep.doctor.settings import Configuration

Format = Literal["text", "json", "github", "sarif"]
# With None first, tyro need not import typeguard for the default, which takes 0.07 s.
_Several = Union[None, tuple[str, ...]]  # noqa: UP007


@command("check")
def run(
    paths: Annotated[_Several, tyro.conf.arg(metavar="[PATH ...]")] = None,
    /,
    *,
    select: Annotated[_Several, tyro.conf.arg(metavar="RULE ...")] = None,
    ignore: Annotated[_Several, tyro.conf.arg(metavar="RULE ...")] = None,
    format: Format = "text",
    no_cache: bool = False,
) -> int:
    """Find the mistakes that make training silently wrong, without running the scripts.

    Exit code 1: there are errors or warnings, or a file could not be read. `surestep explain SS101`
    explains a rule.

    Args:
        paths: Scripts, notebooks, or folders with them; None is the current folder.
        select: Only these rules: codes, starts of codes, or names: `--select SS1 SS501`.
        ignore: Not these rules.
        format: How to print the findings; github annotates the lines of a pull request.
        no_cache: Check files again that are unchanged since they were checked.
    """
    found = find_files(paths or ["."])
    selectors = _split(select or ())
    codes = _Selection(selectors, _split(ignore or ()))
    for text in list_unchecked(selectors):
        print_escaped(text, sys.stderr)
    files = [(path, codes.of(configuration)) for path, configuration in found.files]
    cache = ResultCache(None if no_cache else find_cache_folder())
    reports = check_files(files, cache)
    for report in reports:
        for text in (*report.notes, report.problem):
            if text:
                print_escaped(text, sys.stderr)
    _print(reports, format, found.excluded)
    return int(any(map(_fails, reports)))


def _fails(report: FileReport) -> bool:
    is_bad = any(finding.severity in ("error", "warning") for finding in report.findings)
    return is_bad or bool(report.problem)


def _split(selectors: Sequence[str]) -> list[str]:
    """Return selectors that may be separated by commas."""
    names = [name for text in selectors for name in text.split(",") if name]
    for name in names:
        if Path(name).suffix or "/" in name:
            raise ConfigError(f"{name!r} is not a rule. Give paths before the options.")
    return names


class _Selection:
    """The rules that the command line and the settings select."""

    def __init__(self, select: Sequence[str], ignore: Sequence[str]) -> None:
        self._select, self._ignore = select, ignore
        self._codes: dict[Configuration, tuple[str, ...]] = {}
        select_codes(select, ignore, "surestep check")

    def of(self, configuration: Configuration) -> tuple[str, ...]:
        """Return the codes of the rules for files with these settings."""
        if configuration not in self._codes:
            settings = configuration.settings
            origin = str(configuration.file)
            select_codes(settings.select, settings.ignore, origin)
            ignore = (*settings.ignore, *self._ignore)
            self._codes[configuration] = select_codes(
                self._select or settings.select, ignore, origin
            )
        return self._codes[configuration]


def _print(reports: Sequence[FileReport], format: Format, excluded: int) -> None:
    """Print the findings to stdout, and a summary; programs find it on stderr."""
    from surestep.doctor.formats import format_github, format_text, summarize

    findings: list[Finding] = [finding for report in reports for finding in report.findings]
    problems = [report.problem for report in reports if report.problem]
    summary = summarize(findings, len(reports) - len(problems), len(problems), excluded)
    if format == "text":
        for finding in findings:
            print_escaped(f"{format_text(finding)}\n")
        print_escaped(summary)
        return
    if format == "github":
        for finding in findings:
            print_escaped(format_github(finding))
    else:
        _print_json(findings, problems, format)
    print_escaped(summary, sys.stderr)


def _print_json(findings: list[Finding], problems: list[str], format: Format) -> None:
    import json

    from surestep.doctor.finding import to_json
    from surestep.doctor.rule import load_rules
    from surestep.doctor.sarif import to_sarif

    log = to_json(findings) if format == "json" else to_sarif(findings, load_rules(), problems)
    print_json(json.dumps(log, indent=1, default=str))
