"""A file of known findings, so that `surestep check` reports those that are new.

A finding is recognized by its file, its rule and the text of its line, and not by the number of the
line. A line that is in a file several times is counted. Paths are relative to the file of findings.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError
from surestep.base.text import format_count
from surestep.doctor.finding import Finding
from surestep.doctor.report.file_report import FileReport
from surestep.doctor.rule import load_rules

VERSION = 1
_FIELDS = {"file": str, "rule": str, "source": str, "count": int}


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

    Raises:
        ConfigError: the file cannot be read, or is not a baseline.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._remaining = _read(file)

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

    def describe_missing(self, codes: Mapping[str, Sequence[str]]) -> str:
        """Return a line on the findings that were looked for and not found; "" if there are none.

        Args:
            codes: of the rules that were looked for, by the path of each file that was checked.
        """
        checked = {_relate(path, self._file): rules for path, rules in codes.items()}
        all_codes = {rule.code for rule in load_rules()}
        missing = 0
        for key, count in self._remaining.items():
            if key.file in checked:
                is_missing = key.rule in checked[key.file] or key.rule not in all_codes
            else:
                is_missing = not os.path.lexists(self._file.parent / key.file)
            missing += count * is_missing
        if not missing:
            return ""
        found = f"{format_count(missing, 'finding')} of {self._file}"
        return f"Not found again: {found}. --write-baseline writes the file without what is fixed."


def write_findings(file: Path, reports: Iterable[FileReport]) -> int:
    """Write the findings of reports to a file, one a line; return how many there are.

    Raises:
        ConfigError: the file cannot be written, or is a different one, such as a script.
    """
    counts = Counter(
        _make_key(_relate(report.path, file), finding)
        for report in reports
        for finding in report.findings
    )
    order = sorted(counts, key=lambda key: (key.file, key.rule, key.source))
    entries = [json.dumps({**vars(key), "count": counts[key]}) for key in order]
    lines = "".join(f"\n  {entry}," for entry in entries).removesuffix(",")
    text = f'{{\n "version": {VERSION},\n "findings": [{lines}\n ]\n}}\n'
    try:
        if file.is_file() and not _may_be_baseline(file.read_bytes().strip()):
            raise ConfigError(
                f"{file} exists and is not a baseline. Name a different file, or delete this one."
            )
        file.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}.") from error
    return counts.total()


def _may_be_baseline(content: bytes) -> bool:
    """Return whether a file has the look of a baseline, which a merge may have damaged."""
    return not content or (content.startswith(b"{") and b'"findings"' in content)


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


def _read(file: Path) -> Counter[_Key]:
    try:
        table: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"The baseline {file} does not exist. Write it: surestep check --write-baseline {file}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise _wrong(file, str(error)) from error
    version = table.get("version") if isinstance(table, dict) else None
    if type(version) is int and version > VERSION:
        raise ConfigError(
            f"{file} has version {version}, and this surestep reads {VERSION}. Install a newer "
            "one: pip install -U surestep."
        )
    if (
        type(version) is not int
        or version != VERSION
        or not isinstance(table.get("findings"), list)
    ):
        raise _wrong(file, f'it has no "version": {VERSION} with a list of "findings"')
    counts: Counter[_Key] = Counter()
    for number, entry in enumerate(table["findings"], start=1):
        if not _is_entry(entry):
            raise _wrong(file, f"entry {number} is not one with {', '.join(_FIELDS)}")
        counts[_Key(entry["file"], entry["rule"], entry["source"])] += entry["count"]
    return counts


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.keys() != _FIELDS.keys():
        return False
    return all(type(entry[name]) is kind for name, kind in _FIELDS.items()) and entry["count"] > 0


def _wrong(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} is not a baseline of surestep check: {why}. Write it again: surestep check "
        f"--write-baseline {file}"
    )
