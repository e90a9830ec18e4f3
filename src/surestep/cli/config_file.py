"""The file of --config, TOML or a run's config.json: its options, and where each was set."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from surestep.base.errors import ConfigError, RunError
from surestep.record.io import read_json
from surestep.record.schemas import CONFIG

_TABLE = re.compile(r"\s*\[\[?\s*([\w.\-]+)\s*\]")
_TABLES = ("parallel.deepspeed", "doctor.ignore")
_KEY = re.compile(r"\s*([\w.\-]+)\s*=")


class ConfigFile(NamedTuple):
    """The options of a file by full name, and where each was set, "run.toml:7".

    `tuned` is the machine on which `surestep tune` measured the options; empty if it did not.
    """

    options: dict[str, Any]
    places: dict[str, str]
    tuned: Mapping[str, Any] = MappingProxyType({})


def read_config_file(path: Path, option: str = "--config") -> ConfigFile:
    """Read a TOML file, or the config.json of a run folder.

    Args:
        path: of the file.
        option: that names the file, for the messages.

    Raises:
        ConfigError: it cannot be read, or is neither.
    """
    if path.suffix == ".json" and option == "--config":
        return _read_record(path)
    text = _read_text(path, option)
    tuned: Any = {}
    try:
        found = tomllib.loads(text)
        if option == "--config":
            tuned = found.pop("tuned", {})
        options = _flatten(found)
    except RecursionError:
        raise ConfigError(f"{option} {path} is nested too deep: options are at most two.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{option} {path} is not TOML: {error}. Write options as: "
            + ('optim.lr = "log(1e-5, 1e-2)"' if option == "--space" else "optim.lr = 1e-3")
        ) from error
    if not isinstance(tuned, Mapping):
        raise ConfigError(f"{option} {path}: tuned={tuned!r} is not a table. Leave it out.")
    return ConfigFile(options, _places(path, text, options), tuned)


def read_points(path: Path) -> list[Any]:
    """Read the points of --enqueue: the tables [[points]] of a TOML file, or a list in JSON.

    Raises:
        ConfigError: it cannot be read, or has no list.
    """
    text = _read_text(path, "--enqueue")
    how = "Write [[points]] above the options of each point: optim.lr = 1e-3"
    try:
        if path.suffix == ".json":
            how = 'Write a list of points: [{"optim.lr": 1e-3}]'
            found = json.loads(text)
        else:
            found = tomllib.loads(text).get("points")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--enqueue {path} cannot be read: {error}. {how}") from error
    if not isinstance(found, list) or not found:
        raise ConfigError(f"--enqueue {path} has no list of points. {how}")
    return found


def _read_text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option} {path} is not text: {error.reason}.") from error


def _read_record(path: Path) -> ConfigFile:
    """Return the options and the recipe's parameters of a run, but not its mirror."""
    try:
        recorded = read_json(path, CONFIG, hint="Pass the config.json of a run folder, or TOML.")
    except RunError as error:
        raise ConfigError(f"--config {path}: {error}") from error
    options = {name: v for name, v in recorded["config"].items() if name != "checkpoint.mirror"}
    options |= {f"task.{name}": value for name, value in recorded["task"].items()}
    return ConfigFile(options, dict.fromkeys(options, str(path)))


def _flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return options by full name; an option that is a table is one value."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and prefix + name not in _TABLES:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _places(path: Path, text: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return where each option is; one in an inline table is where the table is."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = f"{header[1]}."
            lines.setdefault(header[1], number)
        elif key := _KEY.match(line):
            lines.setdefault(table + key[1], number)

    def line_of(name: str) -> int:
        return lines[name] if name in lines else line_of(name.rpartition(".")[0]) if name else 1

    return {name: f"{path}:{line_of(name)}" for name in options}
