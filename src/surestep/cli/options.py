"""The options of a command, from the Config and the parameters of a recipe's function.

tyro parses the words and prints the help. It passes every value on as text, and the Config parses
it, so that messages are the same wherever an option was set.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import tyro

from surestep.base.errors import ConfigError, RecipeError, SurestepError
from surestep.base.text import print_escaped
from surestep.base.written import COMMAND_LINE
from surestep.cli.config_file import ConfigFile, flat, read_config_file
from surestep.cli.help import HELP_ALL, Shown, asks_for_help, chosen_by, help_text, set_by
from surestep.cli.parse import parse
from surestep.cli.spelling import Spelled, spell_out, values_in
from surestep.config.config import LENGTHS, Config, iter_options
from surestep.config.not_set import NotSet
from surestep.engine.step.gc import import_without_collecting
from surestep.recipes.find import BUILT_IN, Outline, Parameter, RecipeFile, explained, find
from surestep.recipes.parameters import read_parameters

if TYPE_CHECKING:  # the command line is read and checked without torch
    from surestep.engine.task.task import Task
    from surestep.recipes.load import Recipe
    from surestep.trainer.planning import TaskOrigin

NOT_SAID = "\0"  # no text that a command line can hold
ALIASES = {"logging.ranks": ("--log-ranks",)}


@dataclass(frozen=True)
class ParsedCommand:
    """What a command line asks for.

    Attributes:
        recipe: the recipe.
        config: the recipe's config, overridden by the file, overridden by the command line.
        parameters: arguments of the recipe's function.
        set_options: where each option was set, by full name.
        extras: options of the command itself.
    """

    recipe: Recipe
    config: Config
    parameters: dict[str, Any]
    set_options: dict[str, str]
    extras: dict[str, Any]

    @property
    def origin(self) -> TaskOrigin:
        """Where the Task comes from."""
        return self.recipe.origin(self.parameters, self.set_options)

    def task(self) -> Task:
        """Call the recipe's function."""
        return self.recipe.build(self.parameters, self.config)


def read_command_line(
    command: str,
    words: list[str],
    extras: Mapping[str, Any],
    *,
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> ParsedCommand:
    """Read `RECIPE [options]`; the recipe, and torch with it, is imported once all is checked.

    Args:
        command: "train", "plan".
        words: what stands behind it.
        extras: the command's own options, by name, as (type, default).
        check: raises where the values of `extras` do not fit each other.

    Raises:
        ConfigError, RecipeError: an option or a recipe that is not there, or a bad value.
    """
    name = words[0] if words and not words[0].startswith("-") else None
    if name is None and not asks_for_help(words):
        raise RecipeError(
            f"Which recipe? It comes first. Say `surestep {command} digits`, or a file. "
            f"Built-in recipes: {', '.join(BUILT_IN)}."
        )
    found = find(name) if name is not None else None
    outline = found.outline() if found is not None else Outline(parameters={})
    if outline.parameters is None and found is not None:
        outline = replace(outline, parameters=_parameters_of(found))
    usage = f"surestep {command} {shlex.quote(name) if name else 'RECIPE'}"
    if asks_for_help(words):
        print(_help(usage, words, found, outline, extras))
        raise SystemExit(0)
    assert found is not None  # without one there was help
    spelled = _spell_out(words[1:], extras, outline)
    model = _model(outline, extras, values_in(spelled.words).keys())
    parsed = parse(model, spelled.words, usage, description=outline.doc)
    if check is not None:
        check({each: getattr(parsed, each) for each in extras})
    return _merge(found, outline, parsed, extras, spelled.faults)


def _spell_out(words: list[str], extras: Mapping[str, Any], outline: Outline) -> Spelled:
    return spell_out(words, extras, chain(*ALIASES.values()), outline.parameters or ())


def _parameters_of(found: RecipeFile) -> dict[str, Parameter]:
    """Return the parameters of a recipe whose source does not show them, by running it."""
    from surestep.recipes.load import load_file

    recipe = load_file(found)
    about = explained(recipe.function.__doc__)
    return {
        name: Parameter(None if each.default is each.empty else repr(each.default), "")._replace(
            about=about.get(name, "")
        )
        for name, each in recipe.parameters.items()
    }


def _help(
    usage: str,
    words: list[str],
    found: RecipeFile | None,
    outline: Outline,
    extras: Mapping[str, Any],
) -> str:
    """Return what applies; with --help-all every option, each with its value in the Plan."""
    every = HELP_ALL in words
    hints = set_by(found.name, outline) if found is not None else {}
    if every and found is not None:
        hints = _values_of_plan(found)
    of_config = {name: _shown(name, each, hints.get(name, "")) for name, each in iter_options()}
    own = [_shown_extra(name, kind) for name, (kind, _) in _with_file(extras).items()]
    typed = _spell_out(words, extras, outline).words
    chosen = None if every else chosen_by(typed, outline)
    return help_text(usage, outline, own, of_config, chosen)


def _shown(name: str, option_field: Any, hint: str) -> Shown:
    typed = [name, *(each.removeprefix("--") for each in ALIASES.get(name, ()))]
    spelt = ", ".join(f"--{each.replace('_', '-')}" for each in typed)
    metavar, text = _metavar(option_field.annotation), f"{option_field.description} {hint}"
    if len(metavar) > _LONG:
        metavar, text = "NAME", f"{text} One of {metavar.replace('|', ', ')}."
    return Shown(f"{spelt} {metavar}", text.strip())


def _shown_extra(name: str, kind: Any) -> Shown:
    explained_type, arg = get_args(kind)
    typed = f"--{(arg.name or name).replace('_', '-')}"
    value = arg.metavar or ("" if explained_type is bool else _metavar(explained_type))
    return Shown(" ".join(filter(None, (typed, value))), arg.help or "")


def _with_file(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command's own options, and the one that names a file of options."""
    file_help = tyro.conf.arg(
        help="TOML file with options; the command line overrides it.",
        metavar="FILE",
        help_behavior_hint="",
    )
    return {**extras, "config": (Annotated[str | None, file_help], None)}


def _merge(
    found: RecipeFile,
    outline: Outline,
    parsed: Any,
    extras: Mapping[str, Any],
    faults: Sequence[str],
) -> ParsedCommand:
    """Put the command line over the file over the recipe, which is imported here."""
    own = {name: getattr(parsed, name) for name in extras}
    own["config_file"] = config_file = getattr(parsed, "config", None)
    on_line = {
        name: value
        for name, value in flat(asdict(parsed)).items()
        if value not in (NOT_SAID, (), None) and name not in own and name != "config"
    }
    in_file, places = read_config_file(Path(config_file)) if config_file else ConfigFile({}, {})
    typed = {name: value for name, value in on_line.items() if not name.startswith("task.")}
    filed = {name: value for name, value in in_file.items() if not name.startswith("task.")}
    values = {**_parameters(in_file), **_parameters(on_line)}
    set_at = {**places, **dict.fromkeys(on_line, COMMAND_LINE)}
    types = {name: each.type for name, each in (outline.parameters or {}).items()}
    of_task = read_parameters(found.name, types, values, set_at).faults
    # What is wrong in these needs no recipe.
    merge(Config(), filed, typed, places, [*faults, *of_task])
    with import_without_collecting():
        from surestep.recipes.load import load_file

    recipe = load_file(found)  # its own code may switch the collector off
    config = merge(recipe.config, filed, typed, places, ())
    said = {
        **dict.fromkeys(recipe.config.set_options(), f"recipe {recipe.name}"),
        **set_at,
    }
    return ParsedCommand(recipe, config, recipe.typed(values, set_at), said, own)


def merge(
    config: Config,
    filed: Mapping[str, Any],
    typed: Mapping[str, Any],
    places: Mapping[str, str],
    faults: Sequence[str],
) -> Config:
    """Return a Config with the file's options over its own, and the command line's over both.

    Args:
        config: the recipe's.
        filed: options of the file, by their full names.
        typed: options of the command line.
        places: where those of the file are.
        faults: of the command line, which are raised with those of the values.

    Raises:
        ConfigError: all that is wrong.
    """
    if set(LENGTHS) & set(typed):  # the command line replaces the other way to set the length
        filed = {name: value for name, value in filed.items() if name not in LENGTHS}
    found = list(faults)
    try:
        of_line = dict.fromkeys(typed, COMMAND_LINE)
        config = config.replace_options({**filed, **typed}, {**places, **of_line})
    except ConfigError as error:
        found.append(str(error))
    if found:
        raise ConfigError("\n".join(found))
    return config


def _parameters(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix("task."): v for k, v in flat.items() if k.startswith("task.")}


def _model(outline: Outline, extras: Mapping[str, Any], typed: AbstractSet[str]) -> type[Any]:
    """Make the class that tyro reads: every option is text or not said.

    Args:
        outline: of the recipe.
        extras: the command's own options.
        typed: names of the options that are read. tyro takes 1 ms for each option it knows.
    """
    groups: dict[str, dict[str, Any]] = {"": _with_file(extras)}
    for name, option_field in iter_options():
        if typed.isdisjoint({name, *_aliases(name)}):
            continue
        group, _, option = name.rpartition(".")
        kind: Any = tuple[str, ...] if "tuple" in str(option_field.annotation) else str
        arg = tyro.conf.arg(
            help=option_field.description,
            metavar=_metavar(option_field.annotation),
            help_behavior_hint="",
            aliases=ALIASES.get(name),
        )
        not_said: Any = NOT_SAID if kind is str else ()
        groups.setdefault(group, {})[option] = (Annotated[kind, arg], not_said)
    for name, parameter in (outline.parameters or {}).items():
        if f"task.{name}" not in typed:
            continue
        arg = tyro.conf.arg(help=parameter.about, metavar="VALUE", help_behavior_hint="")
        groups.setdefault("task", {})[name] = (Annotated[str, arg], NOT_SAID)
    top = groups.pop("")
    for group, inner in groups.items():
        made = _dataclass(group, inner)
        top[group] = (made, made())
    return _dataclass("Options", top)


def _aliases(option: str) -> Iterator[str]:
    yield from (each.lstrip("-").replace("-", "_") for each in ALIASES.get(option, ()))


def _dataclass(name: str, members: Mapping[str, tuple[Any, Any]]) -> type[Any]:
    return make_dataclass(
        name,
        [(each, kind, field(default=value)) for each, (kind, value) in members.items()],
        frozen=True,
    )


def _metavar(annotation: Any) -> str:
    """Show the type of an option as its users think of it."""
    found = [each for each in _members(annotation) if each not in (type(None), NotSet)]
    words = [each if isinstance(each, str) else _WORDS.get(each, "VALUE") for each in found]
    return "|".join(dict.fromkeys(words)) if "VALUE" not in words else "VALUE"


_LONG = 60  # characters: more are listed in the text
_WORDS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "True|False"}


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        if Ellipsis in inner:
            return [f"{_WORDS.get(inner[0], 'TEXT')} ..."]
        return [" ".join(["FLOAT"] * len(inner))]
    inner = get_args(annotation)
    return [member for each in inner for member in _members(each)] if inner else [annotation]


def _values_of_plan(found: RecipeFile) -> dict[str, str]:
    """Return what each option is where nothing is said, with the reason, from the Plan itself."""
    from surestep.recipes.load import load_file
    from surestep.trainer.planning import plan_task

    recipe = load_file(found)
    said = dict.fromkeys(recipe.config.set_options(), f"recipe {recipe.name}")
    hints: dict[str, str] = {}
    try:
        parameters = recipe.typed({})
        origin = recipe.origin(parameters, said)
        planned = plan_task(recipe.build(parameters, recipe.config), recipe.config, origin=origin)
    except SurestepError as error:
        print_escaped(f"The defaults are not known: {error}", file=sys.stderr)
        return hints
    for option, value, reason in planned.plan.decisions:
        hints[option] = f"({value}: {reason})"
    for name, value in recipe.config.set_options().items():
        hints.setdefault(name, f"({value}: set in recipe {recipe.name})")
    hints.setdefault("epochs", "(not set: max_steps decides)")
    hints.setdefault("max_steps", "(not set: epochs decide)")
    for name, _ in iter_options():
        hints.setdefault(name, "(None: not an option of what was chosen)")
    return hints
