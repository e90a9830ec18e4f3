"""What a run ran on: versions, device, threads, git commit. No environment variables."""

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from surestep.engine.plan.system import SystemInfo

_PACKAGES = (
    "surestep",
    "torch",
    "numpy",
    "safetensors",
    "pydantic",
    "scikit-learn",
    "torchmetrics",
)


def collect_environment(facts: SystemInfo, folder: Path) -> dict[str, Any]:
    """Return what to know about this process; `folder` is where git is asked."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "devices": list(facts.cuda_devices) or ["cpu"],
        "cpus": facts.cpus,
        "threads": facts.threads,
        "git": _git(folder),
        "executable": Path(sys.executable).name,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """Return commit and whether files differ from it; None where there is no git."""
    try:
        commit = _ask_git(folder, "rev-parse", "HEAD")
        changed = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changed)}


def _ask_git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, timeout=5, check=True
    )
    return done.stdout.strip()
