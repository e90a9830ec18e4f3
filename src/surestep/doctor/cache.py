"""Results of checked files, kept in the cache folder of the user.

An entry holds the digests of the file and of all files that its imports were looked for in. It is
used as long as they are the same, for the same rules and the same version of surestep.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from surestep.base.version import VERSION
from surestep.doctor.finding import Edit, Finding
from surestep.doctor.report.file_report import FileReport
from surestep.doctor.source.files import digest_of, digest_of_file


class ResultCache:
    """The results of earlier checks.

    Args:
        folder: of the entries; None never finds or stores one.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._digests: dict[str, str | None] = {}

    def load(self, path: Path, codes: tuple[str, ...]) -> FileReport | None:
        """Return the result of a file that is unchanged; None if there is none.

        Args:
            path: of the file, as it is shown.
            codes: of the rules.
        """
        if self._folder is None:
            return None
        try:
            digest, _, text = self._locate(path, codes).read_bytes().partition(b"\n")
            if digest_of(text) != digest.decode():
                return None
            entry = json.loads(text)
            if entry["version"] != _version_of_rules():
                return None
            if any(self._digest(name) != digest for name, digest in entry["used"].items()):
                return None
            findings, elsewhere = (
                [_read_finding(found) for found in entry[name]]
                for name in ("findings", "elsewhere")
            )
            notes = list(entry["notes"])
            return FileReport(str(path), findings, elsewhere, notes=notes, used=entry["used"])
        except (OSError, ValueError):  # no entry, or a broken one
            return None

    def store(self, path: Path, codes: tuple[str, ...], report: FileReport) -> None:
        """Store the result of a file; if that fails, do nothing."""
        if self._folder is None or report.problem or report.failed or "" in report.used.values():
            return
        entry = {
            "version": _version_of_rules(),
            "used": report.used,
            "findings": [asdict(finding) for finding in report.findings],
            "elsewhere": [asdict(finding) for finding in report.elsewhere],
            "notes": report.notes,
        }
        text = json.dumps(entry, default=str).encode()
        target = self._locate(path, codes)
        temporary = target.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(digest_of(text).encode() + b"\n" + text)
            temporary.replace(target)

    def _locate(self, path: Path, codes: tuple[str, ...]) -> Path:
        assert self._folder is not None
        key = json.dumps([str(path), os.path.abspath(path), codes])
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _digest(self, name: str) -> str | None:
        if name not in self._digests:
            self._digests[name] = digest_of_file(name)
        return self._digests[name]


def _read_finding(found: dict[str, Any]) -> Finding:
    edits = tuple(Edit(**edit) for edit in found.pop("edits"))
    return Finding(**found, edits=edits)


@cache
def _version_of_rules() -> str:
    """Return what changes with the source of the rules, and with Python's parser."""
    package = Path(__file__).parent
    stats = [(path, path.stat()) for path in sorted(package.rglob("*.py"))]
    files = [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    text = json.dumps([VERSION, sys.version, files])
    return hashlib.sha256(text.encode()).hexdigest()
