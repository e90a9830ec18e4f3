"""Leave out what starts of runs cost on a disk and in this repository, in processes of tests."""

import os
from functools import cache
from pathlib import Path

from surestep.base.user_code import is_user_file
from surestep.record import run_writer
from surestep.trainer import run_identity

ROOT = Path(__file__).parents[1]


def take_shortcuts() -> None:
    """Replace three functions of this process and of its forks."""
    # A run syncs a dozen times, and the disk takes milliseconds each time. What was not synced is
    # lost only when the power fails. `os.fstat` also raises an error for a bad descriptor.
    os.fsync = os.fstat

    # Each start of a run asks git twice: 20 ms. Only in a repository of a test does the answer
    # change. It is asked here, so that forks need not.
    known_commit, read_commit = cache(run_writer.read_commit), run_writer.read_commit
    run_writer.read_commit = lambda folder: (
        read_commit(folder)
        if folder != ROOT and (folder / ".git").exists()
        else known_commit(ROOT if folder == ROOT else Path("/"))
    )

    for folder in (ROOT, Path("/")):
        known_commit(folder)

    # Each start of a run reads the modules of the user, and would read 600 of the tests: 35 ms.
    tests = f"{ROOT / 'tests'}{os.sep}"
    run_identity.is_user_file = lambda file: not file.startswith(tests) and is_user_file(file)
