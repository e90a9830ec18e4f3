"""`surestep check`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Union

import tyro

from surestep.base.cache_folder import find_cache_folder
from surestep.base.errors import ConfigError
from surestep.base.text import escape_terminal, format_count, print_escaped, print_json
from surestep.cli.parse import command
from surestep.cli.selectors import check_selectors, join_repeated, split_commas
from surestep.doctor.cache import ResultCache
from surestep.doctor.check_files import check_files
from surestep.doctor.find_files import find_files
from surestep.doctor.finding import Finding
from surestep.doctor.report.baseline import Baseline, require_overwritable, write_findings
from surestep.doctor.report.file_report import FileReport, list_applied
from surestep.doctor.selection import list_unchecked, select_codes
from surestep.doctor.settings import Configuration
from surestep.doctor.why import explain_line

if TYPE_CHECKING:
    from surestep.doctor.fix_files import FixedFile

Format = Literal["text", "json", "github", "sarif"]
# With None first, tyro need not import typeguard for the default, which takes 0.07 s.
_Several = Union[None, tuple[str, ...]]  # noqa: UP007
_Rules = Annotated[Union[str, None], tyro.conf.arg(metavar="RULE[,RULE...]")]  # noqa: UP007
_File = Annotated[Union[str, None], tyro.conf.arg(metavar="FILE")]  # noqa: UP007
_Pair = Union[None, tuple[str, str]]  # noqa: UP007
_Line = Annotated[_Pair, tyro.conf.arg(metavar="FILE:LINE RULE")]
_Patterns = Annotated[Union[str, None], tyro.conf.arg(metavar="PATTERN[,...]")]  # noqa: UP007


def run(words: list[str]) -> int:
    """Check scripts; return the exit code."""
    check_selectors(words)
    return _run(join_repeated(words))


@command("check")
def _run(
    paths: Annotated[_Several, tyro.conf.arg(metavar="[PATH ...]")] = None,
    /,
    *,
    select: _Rules = None,
    ignore: _Rules = None,
    exclude: _Patterns = None,
    format: Format = "text",
    baseline: _File = None,
    write_baseline: _File = None,
    certain: bool = False,
    no_cache: bool = False,
    fix: bool = False,
    diff: bool = False,
    why: _Line = None,
) -> int:
    """Find the mistakes that make training silently wrong, without running the scripts.

    Exit code 1: there are errors or warnings, a file could not be read or fixed, a rule failed, or
    --diff shows a change. `surestep explain SS101` explains a rule.

    Args:
        paths: Scripts, notebooks, or folders with them. Without any, the current folder is checked.
        select: Only these rules: codes, starts of codes, or names: `--select SS1,SS501`.
        ignore: Not these rules.
        exclude: Not these files and folders: patterns as in .gitignore, or absolute paths.
        format: How to print the findings; github annotates the lines of a pull request.
        baseline: Report only the findings that are not in this file.
        write_baseline: Write the findings to this file instead, for --baseline.
        certain: Leave out findings that assume what the source does not show.
        no_cache: Check files again that are unchanged since they were checked.
        fix: Correct the scripts where a rule has a safe correction, and report what remains.
        diff: Print what --fix would change, and change nothing.
        why: Print what is known at a line, and where it gave up: `--why train.py:38 SS401`.
    """
    if why is not None:
        return _explain(*why)
    _require_files(paths or (), baseline, write_baseline)
    _require_alone(baseline, write_baseline, fix=fix, diff=diff, is_text=format == "text")
    found = find_files(paths or ["."], split_commas([exclude or ""]))
    if not found.files and not found.excluded:
        raise ConfigError(
            f"There is no script (.py) or notebook (.ipynb) in {', '.join(paths or ['.'])}. Hidden "
            "folders, virtual environments, site-packages, build and node_modules are not searched."
        )
    selectors = split_commas([select or ""])
    codes = _Selection(selectors, split_commas([ignore or ""]))
    for text in list_unchecked(selectors):
        print_escaped(text, sys.stderr)
    files = [(path, codes.of(configuration)) for path, configuration in found.files]
    # Before the check, which may take a minute.
    baselines = (
        {} if diff or write_baseline else _read_baselines(baseline, found.files, paths or ())
    )
    cache_folder = None if no_cache else find_cache_folder("check")
    reports = check_files(files, ResultCache(cache_folder))
    fixed, failures = _fix(reports, dict(files), is_dry=diff) if fix or diff else (0, [])
    if fixed and fix:
        reports = check_files(files, ResultCache(cache_folder))  # one reads each file once
    for text in failures:
        print_escaped(text, sys.stderr)
    texts = (text for report in reports for text in (*report.notes, report.problem))
    for text in dict.fromkeys(filter(None, texts)):  # a broken rule is noted for each file
        print_escaped(text, sys.stderr)
    if diff:
        print_escaped(f"--fix would fix {format_count(fixed, 'finding')}.", sys.stderr)
        return int(bool(fixed or failures or any(map(_is_incomplete, reports))))
    if fix:
        print_escaped(f"{fixed} fixed.", sys.stderr)
    only_certain = {path for path, found_in in found.files if certain or found_in.settings.certain}
    if write_baseline:
        shown = _drop_assumed(reports, only_certain)
        _write_baseline(Path(write_baseline), shown, dict(files))
        return int(bool(failures) or any(map(_is_incomplete, reports)))
    new = _drop_known(reports, baselines, dict(files))
    known = sum(len(report.findings) for report in reports) - sum(len(r.findings) for r in new)
    new = _drop_assumed(new, only_certain)
    _print(new, format, found.excluded, known)
    return int(bool(failures) or any(map(_fails, new)))


def _explain(place: str, selector: str) -> int:
    for text in explain_line(place, selector):
        print_escaped(text)
    return 0


def _require_files(paths: Sequence[str], baseline: str | None, write_baseline: str | None) -> None:
    """Reject empty names: a variable of a shell may not be set."""
    if "" in paths:
        raise ConfigError("A path is empty: ''. Give a file or a folder; . is the current folder.")
    for option, value in (("--baseline", baseline), ("--write-baseline", write_baseline)):
        if value == "":
            raise ConfigError(
                f"{option} '' names no file. Give a path: {option} surestep-baseline.json"
            )
    if write_baseline:  # before files are fixed
        require_overwritable(Path(write_baseline))


def _require_alone(
    baseline: str | None, write_baseline: str | None, *, fix: bool, diff: bool, is_text: bool
) -> None:
    """Reject options that print or write something else than the others."""
    if diff and (fix or not is_text):
        raise ConfigError("Give --diff without --fix and --format: it prints a diff.")
    if write_baseline and (diff or baseline or not is_text):
        raise ConfigError(
            "Give --write-baseline without --baseline, --diff and --format: it writes all findings."
        )
    if diff and baseline:
        raise ConfigError("Give --diff without --baseline: --fix corrects known findings too.")


def _write_baseline(
    file: Path, reports: Sequence[FileReport], codes: Mapping[Path, tuple[str, ...]]
) -> None:
    count, kept = write_findings(file, reports, list_applied(reports, codes))
    suffix = f", {kept} of them of files or rules that were not checked" if kept else ""
    print_escaped(f"{file} has {format_count(count, 'finding')}{suffix}.")


def _read_baselines(
    option: str | None, files: Iterable[tuple[Path, Configuration]], paths: Sequence[str]
) -> dict[Path, Baseline]:
    """Return the baseline of each file that has one, by its path."""
    read: dict[Path, Baseline] = {}
    baselines = {}
    for path, configuration in files:
        file = Path(option) if option else configuration.baseline
        if file is not None:
            if file not in read:
                read[file] = Baseline(file, paths)
            baselines[path] = read[file]
    return baselines


def _drop_known(
    reports: Sequence[FileReport],
    baselines: Mapping[Path, Baseline],
    codes: Mapping[Path, tuple[str, ...]],
) -> list[FileReport]:
    """Return reports of what is new; print which findings of the baselines were not found again."""
    new = []
    applied = list_applied(reports, codes)
    checked: dict[Baseline, dict[str, set[str]]] = {}
    for report in reports:
        baseline = baselines.get(Path(report.path))
        new.append(report if baseline is None else baseline.drop_known(report))
        if baseline is not None:
            checked.setdefault(baseline, {})[report.path] = applied[report.path]
    for baseline, of_files in checked.items():
        if text := baseline.describe_missing(of_files):
            print_escaped(text, sys.stderr)
    return new


def _drop_assumed(reports: Sequence[FileReport], paths: set[Path]) -> list[FileReport]:
    """Return reports without the assumed findings of some files."""
    return [
        replace(report, findings=[found for found in report.findings if not found.assumed])
        if Path(report.path) in paths
        else report
        for report in reports
    ]


def _fix(
    reports: Sequence[FileReport], codes: Mapping[Path, tuple[str, ...]], *, is_dry: bool
) -> tuple[int, list[str]]:
    """Fix files, or print the changes; return how many findings are fixed, and what failed."""
    from surestep.doctor.fix_files import FixError, fix_file  # takes long to import

    count, failures = 0, []
    for report in reports:
        try:
            fixed = fix_file(report, codes[Path(report.path)])
            if fixed is None:
                continue
            if is_dry:
                _print_diff(fixed)
            else:
                fixed.write()
        except FixError as error:
            failures.append(str(error))
        else:
            count += fixed.count
    return count, failures


def _print_diff(fixed: "FixedFile") -> None:
    """Print a diff to a terminal as text, and else as a patch that applies."""
    if sys.stdout.isatty() or not hasattr(sys.stdout, "buffer"):
        sys.stdout.write(escape_terminal(fixed.diff()))
        return
    sys.stdout.flush()  # what was printed before
    sys.stdout.buffer.write(fixed.patch())


def _fails(report: FileReport) -> bool:
    is_bad = any(finding.severity in ("error", "warning") for finding in report.findings)
    return is_bad or _is_incomplete(report)


def _is_incomplete(report: FileReport) -> bool:
    """Return whether a file could not be read, or a rule failed: it may have more findings."""
    return bool(report.problem or report.failed)


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


def _print(reports: Sequence[FileReport], format: Format, excluded: int, known: int) -> None:
    """Print the findings to stdout, and a summary; programs find it on stderr."""
    from surestep.doctor.report.formats import format_github, format_text, summarize

    findings: list[Finding] = [finding for report in reports for finding in report.findings]
    problems = [report.problem for report in reports if report.problem]
    summary = summarize(findings, len(reports) - len(problems), len(problems), excluded, known)
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
    from surestep.doctor.report.sarif import to_sarif
    from surestep.doctor.rule import load_rules

    log = to_json(findings) if format == "json" else to_sarif(findings, load_rules(), problems)
    print_json(json.dumps(log, indent=1, default=str))
