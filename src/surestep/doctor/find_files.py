"""Find the files to check in the paths of a command line."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from surestep.base.errors import ConfigError
from surestep.doctor.settings import Configuration, Settings, find_configuration

SUFFIXES = (".py", ".ipynb")
_SKIPPED = frozenset(("site-packages", "build", "node_modules", "__pycache__"))


@dataclass
class FoundFiles:
    """The files to check, with their settings, and how many are excluded."""

    files: list[tuple[Path, Configuration]] = field(default_factory=list)
    excluded: int = 0


def find_files(paths: Sequence[str], exclude: Sequence[str] = ()) -> FoundFiles:
    """Return the files that the paths name, or that are in them, once.

    Folders are searched, without hidden ones, virtual environments, site-packages, build and
    node_modules. The settings are those of the nearest pyproject.toml of each path. The patterns in
    `exclude` count too, as if they were in a pyproject.toml of the current folder, or of the folder
    of a path that is outside of it. They may also be absolute paths.

    Raises:
        ConfigError: a path does not exist or is not a script, or settings are wrong.
    """
    found, names = FoundFiles(), set()
    known: dict[Path, Configuration] = {}
    for name in paths:
        path = _require_path(name)
        configuration = find_configuration(path, known)
        excluding = configuration, _configure(exclude, path)
        for file in _list_files(path, excluding):
            if (key := os.path.abspath(file)) in names:
                continue
            names.add(key)
            if _is_excluded(file, excluding):
                found.excluded += 1
            else:
                found.files.append((file, configuration))
    return found


def _configure(exclude: Sequence[str], path: Path) -> Configuration:
    """Return the settings that patterns of the command line are for a path."""
    absolute, folder = Path(os.path.abspath(path)), Path.cwd()
    if not absolute.is_relative_to(folder):
        folder = absolute if absolute.is_dir() else absolute.parent
    patterns = (
        f"/{Path(pattern).relative_to(folder)}" if Path(pattern).is_relative_to(folder) else pattern
        for pattern in exclude
    )
    return Configuration(Settings(exclude=tuple(patterns)), folder / "pyproject.toml")


def _require_path(name: str) -> Path:
    """Return the path of a folder, a script or a notebook."""
    path = Path(name)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:  # permission denied, too long, null bytes
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is neither a file nor a folder.")
    if stat.S_ISREG(mode) and path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} is neither a script (.py) nor a notebook (.ipynb).")
    return path


def _list_files(path: Path, excluding: Sequence[Configuration]) -> Iterator[Path]:
    if path.is_dir():
        yield from _search(path, excluding)
    else:
        yield path


def _search(top: Path, excluding: Sequence[Configuration]) -> Iterator[Path]:
    for folder, folders, files in os.walk(top):
        base = Path(folder)
        folders[:] = sorted(name for name in folders if not _is_skipped(base / name, excluding))
        for name in sorted(files):
            path = base / name
            if path.suffix in SUFFIXES and os.path.isfile(path):
                yield path


def _is_skipped(folder: Path, excluding: Sequence[Configuration]) -> bool:
    return (
        folder.name.startswith(".")
        or folder.name in _SKIPPED
        or os.path.isfile(folder / "pyvenv.cfg")
        or _is_excluded(folder, excluding)
    )


def _is_excluded(path: Path, excluding: Sequence[Configuration]) -> bool:
    return any(configuration.excludes(path) for configuration in excluding)
