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
    `exclude` count too, as if they were in a pyproject.toml of the current folder, and in one of
    the folder of a path that is outside of it. They may also be absolute paths.

    Raises:
        ConfigError: a path does not exist or is not a script, or settings are wrong.
    """
    found, names = FoundFiles(), set()
    known: dict[Path, Configuration] = {}
    resolved = _resolve(exclude)
    for name in paths:
        path = _require_path(name)
        configuration = find_configuration(path, known)
        excluding = _Excluding([configuration, *_configure(exclude, path)], resolved)
        for file in _list_files(path, excluding):
            if (key := os.path.abspath(file)) in names:
                continue
            names.add(key)
            if excluding.has(file):
                found.excluded += 1
            else:
                found.files.append((file, configuration))
    return found


@dataclass
class _Excluding:
    """What is not searched.

    Attributes:
        configurations: for paths as they are given.
        absolute: of the patterns that are absolute paths, for paths without links.
    """

    configurations: list[Configuration]
    absolute: Configuration

    def has(self, path: Path) -> bool:
        """Return whether a file or folder is excluded."""
        if any(configuration.excludes(path) for configuration in self.configurations):
            return True
        has_absolute = bool(self.absolute.settings.exclude)
        return has_absolute and self.absolute.excludes(Path(os.path.realpath(path)))


def _configure(exclude: Sequence[str], path: Path) -> list[Configuration]:
    """Return the settings that patterns of the command line are for a path."""
    absolute, folders = Path(os.path.abspath(path)), [Path.cwd()]
    if not absolute.is_relative_to(folders[0]):
        folders.append(absolute if absolute.is_dir() else absolute.parent)
    return [
        Configuration(Settings(exclude=tuple(exclude)), folder / "pyproject.toml")
        for folder in folders
    ]


def _resolve(exclude: Sequence[str]) -> Configuration:
    """Return the settings of the absolute patterns, from the root of the file system."""
    patterns = tuple(os.path.realpath(pattern) for pattern in exclude if os.path.isabs(pattern))
    return Configuration(
        Settings(exclude=patterns), Path(os.path.abspath(os.sep), "pyproject.toml")
    )


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


def _list_files(path: Path, excluding: _Excluding) -> Iterator[Path]:
    if path.is_dir():
        yield from _search(path, excluding)
    else:
        yield path


def _search(top: Path, excluding: _Excluding) -> Iterator[Path]:
    for folder, folders, files in os.walk(top):
        base = Path(folder)
        folders[:] = sorted(name for name in folders if not _is_skipped(base / name, excluding))
        for name in sorted(files):
            path = base / name
            if path.suffix in SUFFIXES and os.path.isfile(path):
                yield path


def _is_skipped(folder: Path, excluding: _Excluding) -> bool:
    return (
        folder.name.startswith(".")
        or folder.name in _SKIPPED
        or os.path.isfile(folder / "pyvenv.cfg")
        or excluding.has(folder)
    )
