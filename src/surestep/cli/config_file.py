"""The TOML file of --config: its options, and the line of each."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from surestep.base.errors import ConfigError

_TABLE = re.compile(r"\s*\[\s*([\w.\-]+)\s*\]")
_KEY = re.compile(r"\s*([\w.\-]+)\s*=")
_YAML = re.compile(r"(\s*)[\"']?([\w.\-]+)[\"']?\s*:(?:\s+(.*))?$")
_NUMBER = re.compile(r"[+-]?[0-9._]+(e[+-]?[0-9]+)?", re.IGNORECASE)


class ConfigFile(NamedTuple):
    """What a file sets.

    Attributes:
        options: by their full names.
        places: where each was set, "run.toml:7".
    """

    options: dict[str, Any]
    places: dict[str, str]


def read_config_file(path: Path) -> ConfigFile:
    """Read a TOML file.

    Raises:
        ConfigError: it cannot be read, or is not TOML; how to write it, where it is YAML or JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {path} is not text: {error.reason}.") from error
    try:
        options = flat(tomllib.loads(text))
    except RecursionError:
        raise ConfigError(f"--config {path} is nested too deep: options are at most two.") from None
    except tomllib.TOMLDecodeError as error:
        other = "JSON" if text.lstrip().startswith("{") else "YAML"
        line = _first_of_json(text) if other == "JSON" else _first_of_yaml(text)
        if line is None:
            raise ConfigError(f"--config {path} is not TOML: {error}.") from error
        raise ConfigError(
            f"--config {path} is {other}, and options are read from TOML. Write them to "
            f"{path.with_suffix('.toml')}, which begins with: {line}"
        ) from None
    return ConfigFile(options, _places(path, text, options))


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return options by their full names; DeepSpeed's table is one value."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and prefix + name != "parallel.deepspeed":
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _places(path: Path, text: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return where each option is; one in an inline table is where the table is."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = f"{header[1]}."
            lines.setdefault(header[1], number)
        elif found := _KEY.match(line):
            lines.setdefault(table + found[1], number)
    return {name: f"{path}:{_line(name, lines)}" for name in options}


def _line(name: str, lines: Mapping[str, int]) -> int:
    while name:
        if name in lines:
            return lines[name]
        name = name.rpartition(".")[0]
    return 1


def _first_of_json(text: str) -> str | None:
    """Return the first option of a JSON file as TOML writes it."""
    try:
        options = flat(json.loads(text))
    except (ValueError, RecursionError):
        return None
    return next((f"{name} = {json.dumps(value)}" for name, value in options.items()), None)


def _first_of_yaml(text: str) -> str | None:
    """Return the first option of a YAML file as TOML writes it; None if it is not YAML."""
    tables: list[tuple[int, str]] = []
    for line in text.splitlines():
        bare = line.split(" #")[0].rstrip()
        if not bare.strip() or bare.lstrip().startswith("#") or bare.strip() == "---":
            continue
        match = _YAML.match(bare)
        if match is None:
            return None
        if match[3]:
            above = [name for depth, name in tables if depth < len(match[1])]
            return f"{'.'.join([*above, match[2]])} = {_toml(match[3])}"
        tables.append((len(match[1]), match[2]))
    return None


def _toml(text: str) -> str:
    """Return a value of YAML as TOML writes it."""
    word = text.strip()
    if word.lower() in ("true", "yes", "on"):
        return "true"
    if word.lower() in ("false", "no", "off"):
        return "false"
    if word.lower() in ("null", "~", "none"):
        return '"off"'
    if word.startswith("["):
        inner = (each.strip() for each in word.strip("[]").split(","))
        return f"[{', '.join(_toml(each) for each in inner if each)}]"
    quoted = word[:1] in "\"'"
    return word if quoted or _NUMBER.fullmatch(word) else json.dumps(word)
