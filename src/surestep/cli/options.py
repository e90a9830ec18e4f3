"""The command line of a recipe: `RECIPE --optim.lr 3e-3 --task.hidden 64 --run runs/mine`.

Options of the Config and of the recipe are passed on as text and parsed where a TOML file's are, so
that messages are the same wherever an option was set. tyro parses the command's own options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, get_type_hints

from surestep.base.errors import ConfigError, RecipeError, suggest_names
from surestep.base.locations import COMMAND_LINE, flag
from surestep.cli.config_file import ConfigFile, read_config_file
from surestep.cli.help import ALIASES, asks_for_help, help_page, list_members
from surestep.cli.parse import parse
from surestep.config.config import LENGTHS, Config, iter_options
from surestep.config.group import MAIN, suggest_option
from surestep.engine.step.gc import import_without_collecting
from surestep.recipes.find import BUILT_IN, Outline, RecipeFile, find

if TYPE_CHECKING:  # the command line is read and checked without torch
    from surestep.recipes.load import RecipeCall

# Options that a bare flag switches on, beside those that are true or false.
_BARE = {"compile": "True", "activation_checkpointing": "True", "resume": "auto"}


@dataclass(frozen=True)
class CommandOptions:
    """Options that every command with a recipe has."""

    config: str | None = None
    instead: ClassVar[Mapping[str, str]] = {}  # of another command's options: what to type
    examples: ClassVar[Mapping[str, int]] = {}  # of numbers without a default; else it is 2

    def check(self) -> None:
        """Raise a ConfigError if an option is invalid, or if two cannot be combined."""


Own = TypeVar("Own", bound=CommandOptions)


class SplitWords(NamedTuple):
    """A command line, split by who reads its words."""

    own: list[str]  # of the command itself, and those that belong to nothing
    options: dict[str, Any]  # values of the Config and the recipe, by full name
    faults: list[str]  # a sentence for each option that does not exist or has no value
    places: dict[str, str]  # of each option: the command line, or its short form such as --track


def read_command_line(command: str, words: list[str], options: type[Own]) -> tuple[RecipeCall, Own]:
    """Read `RECIPE [options]`; the recipe, and torch with it, is imported after the checks.

    Raises:
        ConfigError, RecipeError: an option or a recipe does not exist, or a value is invalid.
    """
    name = words[0] if words and not words[0].startswith("-") else None
    wants_help = asks_for_help(words)
    if name is None and not wants_help:
        raise RecipeError(
            f"The recipe is missing. Type `surestep {command} digits`, or a file, before the "
            f"options. Built-in recipes: {', '.join(BUILT_IN)}."
        )
    file = None if name is None else find(name)
    outline = Outline(parameters={}) if file is None else file.outline()
    if file is not None and outline.parameters is None:
        from surestep.recipes.load import load_file

        outline = replace(outline, parameters=load_file(file).outline_parameters())
    split = split_words(words if name is None else words[1:], options, outline.parameters or ())
    usage = f"surestep {command} {shlex.quote(name) if name else 'RECIPE'}"
    if file is None or wants_help:
        print(help_page(usage, words, outline, options, split.options))
        raise SystemExit(0)
    own = parse(options, split.own, usage, description=outline.doc)
    own.check()
    return _load(file, own.config, split), own


def split_words(words: list[str], options: type[Any], parameters: Iterable[str]) -> SplitWords:
    """Split a command line; spell out flags, groups and short forms: `--optim adamw --compile`."""
    of_config = dict(iter_options())
    own = {field.name.rstrip("_") for field in fields(options)} | {"help", "help_all"}
    known = [*of_config, *sorted(own), *ALIASES, *(f"task.{parameter}" for parameter in parameters)]
    on_or_off = {name for name, field in of_config.items() if "bool" in str(field.annotation)}
    lists = {field.name for field in fields(options) if "tuple" in str(field.type)}
    instead = getattr(options, "instead", {})
    lists_typed: dict[str, list[str]] = {}
    result = SplitWords([], {}, [], {})
    entries = _entries(words)
    for name, has_equals, values in entries:
        if not name:  # a word without an option before it
            result.own.extend(values)
            continue
        if name.startswith("no_") and name[3:] in on_or_off:
            name, values = name[3:], ["False"]
        name = f"{name}.{MAIN[name]}" if name in MAIN else name
        typed, name = name, ALIASES.get(name, name)
        if not values and (name in on_or_off or name in _BARE):
            values = [_BARE.get(name, "True")]
        if name in instead:
            result.faults.append(f"There is no option {flag(name)!r}. {instead[name]}")
        elif name not in known:
            result.faults.append(_unknown(name, " ".join(values), known))
        elif name in lists and values:  # again adds to it, as --track
            lists_typed[name] = [*lists_typed.get(name, ()), *values]
        elif values and (fault := _check_own(name, values[0], options)):
            result.faults.append(fault)
        elif name in own:
            result.own.extend([f"{flag(name)}={values[0]}"] if has_equals else [flag(name)])
            result.own.extend([] if has_equals else values)
        elif not values:
            result.faults.append(f"{flag(typed)} has no value. Write {flag(typed)} VALUE.")
        elif name in of_config and "tuple" in str(of_config[name].annotation):
            result.options[name] = (*result.options.get(name, ()), *values)
        else:
            result.options[name] = values[0]
            result.own.extend(values[1:])  # the parser rejects them
        if name in result.options:
            result.places[name] = COMMAND_LINE if typed == name else flag(typed)
    for name, values in lists_typed.items():
        result.own.extend([flag(name), *values])
    return result


def _check_own(name: str, value: str, options: type[Any]) -> str | None:
    """Return why a value of the command's own option is not a number or not a choice."""
    field = next((one for one in fields(options) if one.name.rstrip("_") == name), None)
    members = list_members(get_type_hints(options)[field.name]) if field else ()
    if field is None or str in members:
        return None
    choices = [member for member in members if isinstance(member, str)]
    if choices:
        listed = " or ".join(f"{flag(name)} {choice}" for choice in choices)
        return None if value in choices else f"{flag(name)} has no choice {value!r}. Use {listed}."
    for kind, what in ((int, "whole number"), (float, "number")):
        if kind in members:
            try:
                kind(value)
            except ValueError:
                examples = getattr(options, "examples", {})
                example = examples.get(name, 2) if field.default is None else field.default
                return f"{flag(name)} {value} is not a {what}. Write {flag(name)} {example}."
            return None
    return None


def _entries(words: list[str]) -> list[tuple[str, bool, list[str]]]:
    """Return (name, whether "=" was typed, values) of each option; lone words have no name."""
    entries: list[tuple[str, bool, list[str]]] = []
    for word in words:
        if word.startswith("--") and word != "--":
            name, equals, value = word[2:].partition("=")
            entries.append((name.replace("-", "_"), bool(equals), [value] if equals else []))
        elif entries and not entries[-1][1] and entries[-1][0]:
            entries[-1][2].append(word)
        else:
            entries.append(("", False, [word]))
    return entries


def _unknown(name: str, value: str, known: Iterable[str]) -> str:
    """Return that there is no such option, and which one may be meant."""
    instead = suggest_option(name, value)
    if instead is not None:
        option = re.match(r"[a-z_.]+=", instead)
        meant = f"Use {'--' if option else ''}{instead}."
    else:
        meant = _similar(name.replace("_", "-"), [name.replace("_", "-") for name in known])
    return f"There is no option {flag(name)!r}. {meant}"


def _similar(name: str, known: list[str]) -> str:
    """Name options of similar spelling; within a group they are compared without its name."""
    group, _, own = name.rpartition(".")
    inner = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == group]
    if group and inner:
        return suggest_names(own, inner, f"--{group}.")
    return suggest_names(own, known, "--")


def _load(file: RecipeFile, path: str | None, split: SplitWords) -> RecipeCall:
    """Import the recipe, and put the command line over the file over its config."""
    in_file, places, tuned = read_config_file(Path(path)) if path else ConfigFile({}, {})
    set_at = {**places, **split.places}
    if set(LENGTHS) & set(split.options):  # they replace the other way to set the length
        in_file = {name: value for name, value in in_file.items() if name not in LENGTHS}
    options = {**in_file, **split.options}
    of_config = {name: value for name, value in options.items() if not name.startswith("task.")}
    _check_options(of_config, set_at, split.faults)  # needs no recipe
    with import_without_collecting():
        from surestep.recipes.load import call_recipe, load_file

    if tuned:
        from surestep.tuning.speed.machine import report_other_machine

        report_other_machine(tuned, str(path))
    recipe = load_file(file)  # its own code may disable the collector
    return replace(call_recipe(recipe, options, set_at), tuned=tuned or None)


def _check_options(
    options: Mapping[str, Any], set_at: Mapping[str, str], faults: Iterable[str]
) -> None:
    """Check options of the Config.

    Raises:
        ConfigError: the faults of the command line, and those of the values.
    """
    found = list(faults)
    try:
        Config.from_options(options, set_at)
    except ConfigError as error:
        found.append(str(error))
    if found:
        raise ConfigError("\n".join(found))
