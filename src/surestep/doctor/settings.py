"""Settings of `surestep check`: the table [tool.surestep.check] of pyproject.toml."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError, suggest_names


@dataclass(frozen=True)
class Settings:
    """What the table holds.

    Attributes:
        select: selectors of the rules to use; all if there are none.
        ignore: selectors of rules not to use.
        exclude: patterns of files and folders not to check, as in .gitignore.
        baseline: the file of the known findings, from the folder of the pyproject.toml; "" if
            there is none.
        certain: whether assumed findings are left out.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    baseline: str = ""
    certain: bool = False


@dataclass(frozen=True)
class Configuration:
    """Settings, and the pyproject.toml that they are from; None if there is none."""

    settings: Settings = Settings()
    file: Path | None = None

    @property
    def baseline(self) -> Path | None:
        """The file of the known findings; a path like that of the pyproject.toml."""
        if self.file is None or not self.settings.baseline:
            return None
        return self.file.parent / self.settings.baseline

    def excludes(self, path: Path) -> bool:
        """Return whether a file or folder is excluded, or a folder that it is in."""
        if self.file is None or not self.settings.exclude:
            return False
        try:
            relative = Path(os.path.abspath(path)).relative_to(self.file.parent)
        except ValueError:
            return False
        return any(_matches(relative, pattern) for pattern in self.settings.exclude)


def _matches(path: Path, pattern: str) -> bool:
    """Return whether a pattern names a path: with a slash inside, its start, else any part."""
    pattern = pattern.rstrip("/").removeprefix("./")
    if pattern.startswith("**/"):
        rests = [Path(*path.parts[i:]) for i in range(len(path.parts))]
        return any(_matches(rest, "/" + pattern.removeprefix("**/")) for rest in rests)
    if "/" not in pattern:
        return any(fnmatchcase(part, pattern) for part in path.parts)
    pattern = pattern.lstrip("/")
    starts = (path, *path.parents)
    return any(fnmatchcase(start.as_posix(), pattern) for start in starts)


def find_configuration(path: Path, known: dict[Path, Configuration]) -> Configuration:
    """Return the settings of the nearest pyproject.toml that has some, at or above a path.

    Args:
        path: of a file or folder.
        known: settings by folder, to which new ones are added.

    Raises:
        ConfigError: they cannot be read, or are wrong.
    """
    absolute = Path(os.path.abspath(path))
    return _find(absolute if absolute.is_dir() else absolute.parent, known)


def _find(folder: Path, known: dict[Path, Configuration]) -> Configuration:
    if folder not in known:
        file = folder / "pyproject.toml"
        settings = _read(file) if os.path.isfile(file) else None
        if settings is not None:
            known[folder] = Configuration(settings, file)
        elif folder == folder.parent:
            known[folder] = Configuration()
        else:
            known[folder] = _find(folder.parent, known)
    return known[folder]


def _read(file: Path) -> Settings | None:
    """Read the table; None if there is none."""
    try:
        table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    for key in ("tool", "surestep", "check"):
        if not isinstance(table, dict) or key not in table:
            return None
        table = table[key]
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: tool.surestep.check is not a table.")
    known = [field.name for field in fields(Settings)]
    baseline = table.pop("baseline", None)
    if baseline is not None and (not isinstance(baseline, str) or not baseline):
        raise ConfigError(f'{file}: baseline is a path, such as baseline = "baseline.json".')
    certain = table.pop("certain", False)
    if not isinstance(certain, bool):
        raise ConfigError(f"{file}: certain is true or false, such as certain = true.")
    for key, value in table.items():
        if key not in known:
            raise ConfigError(
                f"{file}: tool.surestep.check has no setting {key!r}. {suggest_names(key, known)}"
            )
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f'{file}: {key} is a list of text, such as {key} = ["SS101"].')
    lists = {key: tuple(value) for key, value in table.items()}
    return Settings(**lists, baseline=baseline or "", certain=certain)
