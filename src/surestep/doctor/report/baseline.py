"""A file of known findings, so that `surestep check` reports those that are new.

A finding is recognized by its file, its rule and the text of its line, and not by the number of the
line. A line that is in a file several times is counted. Paths are relative to the file of findings.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError
from surestep.base.files import replace_file
from surestep.base.text import format_count
from surestep.doctor.finding import Finding
from surestep.doctor.report.file_report import FileReport
from surestep.doctor.rule import list_codes

VERSION = 1
_FIELDS = {"file": str, "rule": str, "source": str, "count": int}
_NOT_AN_ENTRY = re.compile(
    rf'|[{{}}]|"version": {VERSION},|"findings": \[|\]|(?:<{{7}}|={{7}}|>{{7}}|\|{{7}})(?: .*)?'
)


@dataclass(frozen=True)
class _Key:
    """What a finding is recognized by.

    Attributes:
        file: its path, relative to the folder of the baseline, with slashes.
        rule: its code.
        source: its line, with one space where there are several, so that it can be indented.
    """

    file: str
    rule: str
    source: str


class Baseline:
    """The known findings of a file, from which those that are found again are removed.

    Args:
        file: the baseline.
        paths: that are checked, for the command in messages.

    Raises:
        ConfigError: the file cannot be read, or is not a baseline.
    """

    def __init__(self, file: Path, paths: Sequence[str]) -> None:
        self._file = file
        self._remaining = _read(file, paths)

    def drop_known(self, report: FileReport) -> FileReport:
        """Return a report without the findings that are known; each of them is dropped once."""
        file, new = _relate(report.path, self._file), []
        for finding in report.findings:
            key = _make_key(file, finding)
            if self._remaining[key] > 0:
                self._remaining[key] -= 1
            else:
                new.append(finding)
        return replace(report, findings=new)

    def describe_missing(self, applied: Mapping[str, Collection[str]]) -> str:
        """Return a line on the findings that were looked for and not found; "" if there are none.

        Args:
            applied: the codes of the rules that were fully applied to each file, by its path.
        """
        missing = self._remaining - _select_unchecked(self._remaining, applied, self._file)
        if not missing:
            return ""
        found = f"{format_count(missing.total(), 'finding')} of {self._file}"
        return f"Not found again: {found}. --write-baseline writes the file without what is fixed."


def require_overwritable(file: Path) -> None:
    """Require that a file is a baseline, maybe an empty or damaged one, or does not exist.

    Raises:
        ConfigError: it is a different file, such as a script.
    """
    _read_overwritable(file)


def write_findings(
    file: Path, reports: Iterable[FileReport], applied: Mapping[str, Collection[str]]
) -> tuple[int, int]:
    """Write the findings of reports to a file, one a line, with those of it that were not checked.

    Args:
        file: that may be a baseline already.
        reports: with the findings.
        applied: the codes of the rules that were fully applied to each file, by its path.

    Returns:
        How many findings the file has, and how many of these were in it and were not checked.

    Raises:
        ConfigError: the file cannot be written, or is a different one, such as a script.
    """
    found = Counter(
        _make_key(_relate(report.path, file), finding)
        for report in reports
        for finding in report.findings
    )
    counts = found | _select_unchecked(_read_overwritable(file), applied, file)
    order = sorted(counts, key=lambda key: (key.file, key.rule, key.source))
    entries = [json.dumps({**vars(key), "count": counts[key]}) for key in order]
    lines = "".join(f"\n  {entry}," for entry in entries).removesuffix(",")
    text = f'{{\n "version": {VERSION},\n "findings": [{lines}\n ]\n}}\n'
    target = Path(os.path.realpath(file))  # not the link to it
    try:
        with replace_file(target) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
            if target.exists():
                target.open("r+b").close()  # fails if it is read-only
                shutil.copymode(target, temporary)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}.") from error
    return counts.total(), (counts - found).total()


def _select_unchecked(
    known: Counter[_Key], applied: Mapping[str, Collection[str]], baseline: Path
) -> Counter[_Key]:
    """Return the known findings that a check could not have found again."""
    rules = {_relate(path, baseline): codes for path, codes in applied.items()}
    all_codes = list_codes()

    def is_unchecked(key: _Key) -> bool:
        if key.file in rules:
            return key.rule in all_codes and key.rule not in rules[key.file]
        return os.path.lexists(baseline.parent / key.file)

    return Counter({key: count for key, count in known.items() if is_unchecked(key)})


def _make_key(file: str, finding: Finding) -> _Key:
    return _Key(file, finding.rule, " ".join(finding.source.split()))


def _relate(path: str, baseline: Path) -> str:
    """Return a path relative to the folder of a baseline, whichever links lead to them."""
    folder, name = os.path.split(os.path.abspath(path))
    start = os.path.realpath(baseline.parent)
    try:
        relative = os.path.relpath(os.path.join(os.path.realpath(folder), name), start)
    except ValueError:  # another drive of Windows
        return Path(path).absolute().as_posix()
    return Path(relative).as_posix()


def _read(file: Path, paths: Sequence[str]) -> Counter[_Key]:
    """Read a baseline.

    Raises:
        ConfigError: it is missing, cannot be read, or is not a baseline.
    """
    command = shlex.join(["surestep", "check", *paths, "--write-baseline", str(file)])
    try:
        content = _read_bytes(file)
        return _parse(content, file)
    except FileNotFoundError:
        raise ConfigError(f"The baseline {file} does not exist. Write it: {command}") from None
    except (ValueError, RecursionError) as error:
        damaged = _parse_lines(content) is not None
        hint = f"Write it again: {command}" if damaged else "Name a different file."
        raise ConfigError(f"{file} is not a baseline of surestep check: {error}. {hint}") from error


def _read_overwritable(file: Path) -> Counter[_Key]:
    """Read a baseline that will be replaced: it may be missing, empty or damaged by a merge.

    Raises:
        ConfigError: it is a different file.
    """
    try:
        content = _read_bytes(file)
        return _parse(content, file)
    except FileNotFoundError:
        return Counter()
    except (ValueError, RecursionError) as error:
        if (entries := _parse_lines(content)) is None:
            raise ConfigError(
                f"{file} exists and is not a baseline. Name a different file, or delete this one."
            ) from error
        return entries


def _read_bytes(file: Path) -> bytes:
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe waits for its writer
            raise ConfigError(f"{file} is not a regular file. Name a different one.")
        return file.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # also null bytes
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file} cannot be read: {reason}.") from error


def _parse(content: bytes, file: Path) -> Counter[_Key]:
    """Return the entries of a baseline.

    Raises:
        ConfigError: it is of a newer surestep.
        ValueError: it is not a baseline.
    """
    table: Any = json.loads(content.decode("utf-8-sig"))
    version = table.get("version") if isinstance(table, dict) else None
    if type(version) is int and version > VERSION and "findings" in table:
        raise ConfigError(
            f"{file} has version {version}, and this surestep reads {VERSION}. Install a newer "
            "one: pip install -U surestep."
        )
    if (
        type(version) is not int
        or version != VERSION
        or table.keys() != {"version", "findings"}
        or not isinstance(table["findings"], list)
    ):
        raise ValueError(f'it is not "version": {VERSION} and a list of "findings" alone')
    counts: Counter[_Key] = Counter()
    for number, entry in enumerate(table["findings"], start=1):
        if not _is_entry(entry):
            raise ValueError(f"entry {number} is not one with {', '.join(_FIELDS)}")
        counts[_Key(entry["file"], entry["rule"], entry["source"])] += entry["count"]
    return counts


def _parse_lines(content: bytes) -> Counter[_Key] | None:
    """Return the entries of a baseline that a merge damaged; None if it is a different file."""
    counts: Counter[_Key] = Counter()
    for line in content.decode("utf-8-sig", "replace").splitlines():
        if _NOT_AN_ENTRY.fullmatch(line.strip()):
            continue
        try:
            entry = json.loads(line.strip().removesuffix(","))
        except (ValueError, RecursionError):
            return None
        if not _is_entry(entry):
            return None
        counts |= Counter({_Key(entry["file"], entry["rule"], entry["source"]): entry["count"]})
    return counts


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.keys() != _FIELDS.keys():
        return False
    return all(type(entry[name]) is kind for name, kind in _FIELDS.items()) and entry["count"] > 0
