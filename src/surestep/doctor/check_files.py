"""Check many files, in several processes if they are many."""

from __future__ import annotations

import gc
import os
import signal
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from surestep.base.errors import SurestepError
from surestep.doctor.cache import ResultCache
from surestep.doctor.check import check_file, note_bug
from surestep.doctor.finding import Finding
from surestep.doctor.report.file_report import FileReport
from surestep.doctor.rule import list_broken, load_rules
from surestep.doctor.source.files import Project, UnreadableError

# To start a process takes as long as to check about this many files.
FILES_PER_PROCESS = 24
CHUNK = 256  # files that share what they import, which is read once

_ALLOCATIONS = 100_000  # between two collections

Chunk = list[tuple[Path, tuple[str, ...]]]


def check_files(
    files: Sequence[tuple[Path, tuple[str, ...]]], cache: ResultCache
) -> list[FileReport]:
    """Return the report of each file, with what is found in it from the other files.

    Args:
        files: each with the codes of its rules.
        cache: of earlier results; new ones are stored.
    """
    reports = {path: cache.load(path, codes) for path, codes in files}
    missing = [(path, codes) for path, codes in files if reports[path] is None]
    for (path, codes), report in zip(missing, _check_missing(missing), strict=True):
        cache.store(path, codes, report)
        reports[path] = report
    checked = {path: report for path, report in reports.items() if report is not None}
    _hand_over(checked, dict(files))
    return list(checked.values())


def _hand_over(reports: Mapping[Path, FileReport], codes: Mapping[Path, tuple[str, ...]]) -> None:
    """Add what was found in other files to their reports; drop it if they are not checked."""
    paths = {os.path.abspath(path): path for path in reports}
    for finding in [finding for report in reports.values() for finding in report.elsewhere]:
        path = paths.get(os.path.abspath(finding.file))
        if path is None or finding.rule not in codes[path]:
            continue
        findings = reports[path].findings
        if not any(_find_key(finding) == _find_key(other) for other in findings):
            insort(findings, replace(finding, file=str(path)), key=_find_key)


def _find_key(finding: Finding) -> tuple[int, int, str]:
    return finding.line, finding.column, finding.rule


def _check_missing(files: Chunk) -> Iterator[FileReport]:
    processes = min(_count_cores(), len(files) // FILES_PER_PROCESS)
    # Several chunks for each process, so that none waits long for the last.
    size = min(CHUNK, max(FILES_PER_PROCESS, len(files) // (4 * max(processes, 1))))
    chunks = [files[start : start + size] for start in range(0, len(files), size)]
    if processes > 1:
        yield from _check_in_processes(chunks, processes)
        return
    for chunk in chunks:
        yield from check_chunk(chunk)


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_in_processes(chunks: list[Chunk], processes: int) -> Iterator[FileReport]:
    from concurrent.futures import ProcessPoolExecutor  # takes long to import
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    others = active_children()
    try:
        with _block_interrupts():  # the processes inherit it: Ctrl-C is for this one alone
            futures = [pool.submit(check_chunk, chunk) for chunk in chunks]
        for future in futures:
            yield from future.result()
    except KeyboardInterrupt:  # a chunk takes up to a minute
        for process in active_children():
            if process not in others:
                process.terminate()
        raise
    except BrokenProcessPool as error:
        raise SurestepError(
            "A process that checked files was killed, maybe for lack of memory. Check fewer files "
            "at once."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _block_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_chunk(files: Chunk) -> list[FileReport]:
    """Check files, which share what they import."""
    project = Project()
    with _collect_rarely():
        return [_check(path, codes, project) for path, codes in files]


@contextmanager
def _collect_rarely() -> Iterator[None]:
    """Look for unused objects less often: the syntax trees that are kept are most of the work."""
    before = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _check(path: Path, codes: tuple[str, ...], project: Project) -> FileReport:
    report = FileReport(str(path))
    project.used.clear()
    try:
        file = project.read(path)
    except UnreadableError as error:
        report.problem = str(error)
        return report
    rules = [rule for rule in load_rules() if rule.code in codes]
    broken = {code: text for code, text in list_broken().items() if code in codes}
    report.notes, report.failed = list(broken.values()), tuple(broken)
    try:
        report.findings = check_file(file, rules, project, report)
    except Exception as error:
        note_bug(report, "following it", error)
        report.failed = codes
    report.used = {**project.used, os.path.abspath(path): file.digest}
    return report
