"""A disk that fills up at any moment of a run: a small tmpfs, enlarged for the resume.

Without the permission to mount, a limit on the file size makes writing fail instead.
"""

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.manifest import verify
from tests.torture.cases import Case
from tests.torture.outcome import differences
from tests.torture.phases import Deadly
from tests.torture.trial import Part

CASE = Case(data="tensors", average=True)
WIDTH, STEPS, ENOUGH_KB = 2000, 12, 65_536  # 28,000 parameters: 450 KB a checkpoint


def may_mount(folder: Path) -> bool:
    """Return whether a tmpfs can be mounted."""
    try:
        with small_disk(folder, 64):
            return True
    except (subprocess.CalledProcessError, FileNotFoundError):
        return False


@contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[None]:
    """Mount a tmpfs of this size."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder))
    try:
        yield
    finally:
        _run("umount", "-l", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def fill(folder: Path, sizes_kb: list[int]) -> tuple[Counter[str], list[str]]:
    """Run on disks of these sizes, then resume with enough space; return the outcomes."""
    whole = Part(CASE, folder / "whole", width=WIDTH, steps=STEPS).outcome()
    ends, wrong = Counter[str](), []
    for size_kb in sizes_kb:
        disk = folder / f"disk-{size_kb}"
        with small_disk(disk, size_kb):
            run = Part(CASE, disk / "run", width=WIDTH, steps=STEPS)
            ends[_fill(run)] += 1
            wrong += _damaged(run)
            _run("mount", "-o", f"remount,size={ENOUGH_KB}k", str(disk))
            wrong += _resume(run, whole, f"{size_kb} KB")
    return ends, wrong


def limit(folder: Path, sizes: list[int]) -> tuple[Counter[str], list[str]]:
    """Limit the file size from the second save on, then resume without a limit."""
    whole = Part(CASE, folder / "whole", width=WIDTH, steps=STEPS).outcome()
    ends, wrong = Counter[str](), []
    for size in sizes:
        deadly = Deadly(2, file_bytes=size, kills=False)
        run = Part(CASE, folder / f"limit-{size}", width=WIDTH, steps=STEPS, deadly=deadly)
        ends[_fill(run)] += 1
        wrong += _damaged(run)
        again = Part(CASE, run.folder, width=WIDTH, steps=STEPS)
        wrong += _resume(again, whole, f"{size} bytes")
    return ends, wrong


def _fill(run: Part) -> str:
    child = run.start()
    code = child.wait()
    child.close()
    saved = len(list_checkpoints(run.folder / "checkpoints"))
    end = "went on to its end" if code == 0 else "stopped with an error"
    return f"{end}, {saved} checkpoints"


def _damaged(run: Part) -> list[str]:
    found = []
    for path in list_checkpoints(run.folder / "checkpoints"):
        try:
            verify(path)
        except CheckpointError as error:
            found.append(str(error))
    return found


def _resume(run: Part, whole: object, size: str) -> list[str]:
    try:
        again = run.came_to() if run.is_finished() else run.outcome()
        found = differences(whole, again)
    except AssertionError as error:
        found = [str(error)]
    return [f"{size}: {each}" for each in found]
