"""Which torch is installed, without importing it; importing this rejects one that is too old."""

import re
from importlib.util import find_spec
from pathlib import Path

from surestep.base.errors import ConfigError

OLDEST, NEWEST = "2.6", "2.15"  # that docs/versions.md lists


def is_older(version: str, release: str) -> bool:
    """Return whether a version, such as "2.6.0+cpu", is older than a release, such as "2.10"."""
    own, other = (re.findall(r"\d+", text)[:2] for text in (version, release))
    return [*map(int, own)] < [*map(int, other)]


def read_version(package: Path) -> str:
    """Return the version of the torch in a folder; "" if the file is different from what it was."""
    try:
        text = (package / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else ""


def check_oldest(version: str) -> str:
    """Return the version.

    Raises:
        ConfigError: it is too old.
    """
    if version and is_older(version, OLDEST):
        raise ConfigError(
            f"surestep needs torch {OLDEST}, and this is torch {version}. Install it: pip install "
            f"'torch>={OLDEST}'."
        )
    return version


def describe_newer(version: str) -> str | None:
    """Return a notice for a torch that is newer than those that surestep was run with."""
    if not version or not is_older(NEWEST, version):
        return None
    return f"torch {version} is newer than {NEWEST}, the newest that surestep was run with."


def _read_installed() -> str:
    spec = find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    return read_version(Path(folders[0])) if folders else ""


VERSION = check_oldest(_read_installed())
