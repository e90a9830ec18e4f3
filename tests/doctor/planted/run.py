"""Check a script, and watch it while it runs in a process of its own."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surestep.doctor.cache import ResultCache
from surestep.doctor.check_files import check_files
from surestep.doctor.rule import load_rules

SECONDS = 60  # after which a script is stopped
# What scripts import, and what PyTorch, NumPy and the rules import when they are used.
LIBRARIES = ("accelerate", "lightning", "sklearn.model_selection", "sklearn.metrics", "tqdm.auto")
LATE = ("numpy.ma", "surestep.doctor.curves.name", "torch.distributed.fsdp")


@dataclass
class Result:
    """What was found in a script.

    Attributes:
        found: each finding: its rule, severity, line and message.
        error: the exception of the script, or of a rule; "" for none.
        seconds: it took.
    """

    found: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0

    @property
    def codes(self) -> set[str]:
        return {finding["rule"] for finding in self.found}

    @property
    def alarms(self) -> set[str]:
        """Rules whose findings say that a result is wrong."""
        return {f["rule"] for f in self.found if f["severity"] in ("error", "warning")}


def check(files: Mapping[str, str]) -> Result:
    """Return what `surestep check` finds in the files of a script."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(files, Path(folder))
        codes = tuple(rule.code for rule in load_rules())
        reports = check_files([(path, codes) for path in paths], ResultCache(None))
        notes = [note for report in reports for note in report.notes]
        assert not notes, notes  # a rule that failed
        found = [
            summarize(finding, Path(report.path).name)
            for report in reports
            for finding in report.findings
        ]
    return Result(found, "", time.monotonic() - started)


def write_files(files: Mapping[str, str], folder: Path) -> list[Path]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def summarize(finding: Any, file: str) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "at": f"{file}:{finding.line}",
        "message": finding.message,
    }


def watch_all(scripts: Sequence[Mapping[str, str]], processes: int = 1) -> list[Result]:
    """Return what `surestep watch` finds in each script."""
    return run_all(scripts, watch, processes)


def run_all(
    scripts: Sequence[Mapping[str, str]],
    run: Callable[[Mapping[str, str], Path], Result],
    processes: int = 1,
) -> list[Result]:
    """Return what `run` finds in each script, in a folder and a forked process for each."""
    if scripts:
        load_libraries("\n".join(text for files in scripts for text in files.values()))
    results: list[Result] = [Result() for _ in scripts]
    running: dict[int, tuple[int, tempfile.TemporaryDirectory[str], float]] = {}
    for index, files in enumerate(scripts):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        pid = os.fork()
        if pid == 0:
            run_child(files, Path(folder.name), run)
        running[pid] = index, folder, time.monotonic()
        while len(running) >= processes or (running and index + 1 == len(scripts)):
            pid, status = os.wait()
            if pid not in running:
                continue
            done, folder, started = running.pop(pid)
            results[done] = read_result(Path(folder.name), status)
            results[done].seconds = time.monotonic() - started
            folder.cleanup()
    return results


def load_libraries(source: str) -> None:
    """Import what scripts with this source import, once for all of them."""
    # Otherwise torch asks the driver for GPUs, and a forked process cannot use them.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    from surestep.doctor.watch.watch import WatchSession

    # A script has a core: with more threads, two of them wait for each other for a minute.
    torch.set_num_threads(1)
    WatchSession(load_rules())
    torch.optim.SGD([torch.zeros(1)])  # imports torch._dynamo
    for name in LATE:
        importlib.import_module(name)
    for name in LIBRARIES:
        package = name.partition(".")[0]
        if package in source and importlib.util.find_spec(package) is not None:
            importlib.import_module(name)
    # `watch` and the collector of each process would visit, and so copy, all imported objects.
    gc.collect()
    gc.freeze()


def read_result(folder: Path, status: int) -> Result:
    path = folder / "result.json"
    if not path.is_file():
        return Result(error=f"the process ended with status {status}")
    return Result(**json.loads(path.read_text(encoding="utf-8")))


def run_child(
    files: Mapping[str, str], folder: Path, run: Callable[[Mapping[str, str], Path], Result]
) -> None:
    """Run a script, write what was found, and end the process."""
    signal.alarm(SECONDS)
    code = 1
    try:
        os.chdir(folder)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        result = run(files, folder)
        text = json.dumps(result.__dict__, default=str)
        (folder / "result.json.tmp").write_text(text, encoding="utf-8")
        os.replace(folder / "result.json.tmp", folder / "result.json")
        code = 0
    finally:
        os._exit(code)


def watch(files: Mapping[str, str], folder: Path) -> Result:
    """Run a script in this process; it may change anything of the process."""
    from surestep.doctor.watch.watch import WatchSession

    session = WatchSession(load_rules())
    error = run_main(files, folder, session.run)
    report = session.report()
    if report.failures:
        error += f"\nrules failed: {report.failures}"
    if report.stopped_at is not None:
        error += f"\nwatching stopped at step {report.stopped_at}"
    found = [summarize(finding, Path(finding.file).name) for finding in report.findings]
    return Result(found, error)


def run_main(
    files: Mapping[str, str], folder: Path, run: Callable[[Callable[[], object]], object]
) -> str:
    """Run a script by `run` in this process, and return its exception; "" for none."""
    paths = write_files(files, folder)
    sys.argv = [paths[0].name]
    sys.path.insert(0, str(folder))
    main = str(next(path for path in paths if path.name == "train.py"))
    try:
        run(lambda: runpy.run_path(main, run_name="__main__"))
    except BaseException:
        return traceback.format_exc(limit=-2)
    return ""
