"""Ask git about a folder that anyone may have written, so that its configuration runs nothing.

The configuration of a repository can name programs: a file system monitor, hooks, filters that read
changed files, and commands that fetch objects that a repository lacks. The global configuration
still counts, which says, for example, which folders of other users are safe.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

_LIMIT_S = 5
_SAFE = (
    *("--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false"),
    *("-c", f"core.hooksPath={os.devnull}", "-c", "safe.bareRepository=explicit"),
)
_NO_FETCH = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
_NONE_FOUND = 1  # the exit status of `git config --get-regexp`


def read_commit(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a folder and whether files differ from it; None if there is none."""
    status = ("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
    try:
        output = _ask(folder, *_disable_filters(folder), *status, "--ignore-submodules=dirty")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    commit = output.partition("# branch.oid ")[2].partition("\n")[0]
    dirty = any(not line.startswith("# ") for line in output.splitlines())
    return None if commit in ("", "(initial)") else {"commit": commit, "dirty": dirty}


def _ask(folder: Path, *words: str) -> str:
    """Return what git prints. Every call of git in this package is this one."""
    return subprocess.check_output(
        ["git", *_SAFE, *words],
        cwd=folder,
        env={**os.environ, **_NO_FETCH},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=_LIMIT_S,
    )


def _disable_filters(folder: Path) -> list[str]:
    """Return options that replace the filters of a repository, which git knows by name only.

    A file with a filter then counts as changed if its time or size differs from the index.

    Raises:
        ValueError: the name of a filter cannot be in an option.
    """
    try:
        found = _ask(folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.")
    except subprocess.CalledProcessError as error:
        if error.returncode != _NONE_FOUND:
            raise
        return []
    names = {key.rpartition(".")[0] for key in found.split("\0") if key}
    if any("=" in name for name in names):
        raise ValueError("the name of a filter has a =")
    values = ("clean=", "smudge=", "process=", "required=false")
    return [word for name in names for value in values for word in ("-c", f"{name}.{value}")]
