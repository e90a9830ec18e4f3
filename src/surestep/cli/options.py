"""Options of a command from the fields of the Config and the parameters of a recipe's function.

tyro parses and explains; every value is handed on as text, and read by the Config itself, so that
the messages are the same wherever an option was said.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro
from docstring_parser import parse as parse_docstring

from surestep.base.config import LENGTHS, Config, options
from surestep.base.errors import ConfigError, RecipeError, SurestepError
from surestep.base.not_set import NotSet
from surestep.base.written import COMMAND_LINE
from surestep.cli.config_file import ConfigFile, flat, read_config_file
from surestep.cli.spelled import spell_out
from surestep.engine.task import Task
from surestep.recipes.load import BUILT_IN, Recipe, load
from surestep.trainer.planning import Origin, plan_task

NOT_SAID = "\0"  # no text that a command line can hold
ALIASES = {"logging.ranks": ("--log-ranks",)}


@dataclass(frozen=True)
class Asked:
    """What a command line asks for.

    Attributes:
        recipe: which recipe.
        config: the recipe's config, the file's over it, the command line's over both.
        parameters: of the recipe's function.
        said: where each option was said, by full name.
        extras: options of the command itself.
    """

    recipe: Recipe
    config: Config
    parameters: dict[str, Any]
    said: dict[str, str]
    extras: dict[str, Any]

    @property
    def origin(self) -> Origin:
        """Where the Task comes from."""
        return self.recipe.origin(self.parameters, self.said)

    def task(self) -> Task:
        """Call the recipe's function."""
        return self.recipe.build(self.parameters, self.config)


def read_command_line(command: str, words: list[str], extras: Mapping[str, Any]) -> Asked:
    """Read `RECIPE [options]`.

    Args:
        command: "train", "plan".
        words: what stands behind it.
        extras: the command's own options, by name, as (type, default).

    Raises:
        ConfigError, RecipeError: an option or a recipe that is not there, or a bad value.
    """
    name = words[0] if words and not words[0].startswith("-") else None
    if name is None and not {"-h", "--help"} & set(words):
        raise RecipeError(
            f"Which recipe? It comes first. Say `surestep {command} digits`, or a file. "
            f"Recipes that ship: {', '.join(BUILT_IN)}."
        )
    recipe = load(name) if name is not None else None
    hints = _hints(recipe) if {"-h", "--help"} & set(words) else {}
    spelled = spell_out(words[1:] if name is not None else words, extras, chain(*ALIASES.values()))
    parsed = tyro.cli(
        _model(recipe, hints, extras),
        args=spelled.words,
        prog=f"surestep {command} {name or 'RECIPE'}",
        description=inspect.getdoc(recipe.module) if recipe is not None else None,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    assert recipe is not None  # without one there was --help, and tyro has left
    return _merge(recipe, parsed, extras, spelled.faults)


def _merge(recipe: Recipe, parsed: Any, extras: Mapping[str, Any], faults: list[str]) -> Asked:
    """Put the command line over the file over the recipe."""
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
    config = merge(recipe.config, filed, typed, places, faults)
    values = {**_parameters(in_file), **_parameters(on_line)}
    said = {
        **dict.fromkeys(recipe.config.said(), f"recipe {recipe.name}"),
        **places,
        **dict.fromkeys(on_line, COMMAND_LINE),
    }
    return Asked(recipe, config, recipe.typed(values), said, own)


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
        config = config.with_options({**filed, **typed}, {**places, **of_line})
    except ConfigError as error:
        found.append(str(error))
    if found:
        raise ConfigError("\n".join(found))
    return config


def _parameters(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix("task."): v for k, v in flat.items() if k.startswith("task.")}


def _model(recipe: Recipe | None, hints: Mapping[str, str], extras: Mapping[str, Any]) -> type[Any]:
    """Make the class that tyro reads: every option is text or not said."""
    groups: dict[str, dict[str, Any]] = {"": dict(extras)}
    file_help = tyro.conf.arg(
        help="A TOML file whose options stand under these.", metavar="FILE", help_behavior_hint=""
    )
    groups[""]["config"] = (Annotated[str | None, file_help], None)
    for name, option_field in options():
        group, _, option = name.rpartition(".")
        kind: Any = tuple[str, ...] if "tuple" in str(option_field.annotation) else str
        arg = tyro.conf.arg(
            help=option_field.description,
            metavar=_metavar(option_field.annotation),
            help_behavior_hint=hints.get(name, ""),
            aliases=ALIASES.get(name),
        )
        not_said: Any = NOT_SAID if kind is str else ()
        groups.setdefault(group, {})[option] = (Annotated[kind, arg], not_said)
    about = _about_parameters(recipe)
    for name in recipe.parameters if recipe is not None else ():
        hint = hints.get(f"task.{name}", "")
        arg = tyro.conf.arg(help=about.get(name), metavar="VALUE", help_behavior_hint=hint)
        groups.setdefault("task", {})[name] = (Annotated[str, arg], NOT_SAID)
    top = groups.pop("")
    for group, inner in groups.items():
        made = _dataclass(group, inner)
        top[group] = (made, made())
    return _dataclass("Options", top)


def _dataclass(name: str, members: Mapping[str, tuple[Any, Any]]) -> type[Any]:
    return make_dataclass(
        name,
        [(each, kind, field(default=value)) for each, (kind, value) in members.items()],
        frozen=True,
    )


def _about_parameters(recipe: Recipe | None) -> dict[str, str]:
    if recipe is None:
        return {}
    parsed = parse_docstring(recipe.function.__doc__ or "")
    return {each.arg_name: (each.description or "").replace("\n", " ") for each in parsed.params}


def _metavar(annotation: Any) -> str:
    """Show the type of an option as its users think of it."""
    found = [each for each in _members(annotation) if each not in (type(None), NotSet)]
    words = [each if isinstance(each, str) else _WORDS.get(each, "VALUE") for each in found]
    return "|".join(dict.fromkeys(words)) if "VALUE" not in words else "VALUE"


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


def _hints(recipe: Recipe | None) -> dict[str, str]:
    """Return what each option is where nothing is said, with the reason, from the Plan itself."""
    if recipe is None:
        return {}
    said = dict.fromkeys(recipe.config.said(), f"recipe {recipe.name}")
    empty = inspect.Parameter.empty
    hints = {
        f"task.{name}": f"({each.default!r}: the recipe's default)"
        if each.default is not empty
        else "(required)"
        for name, each in recipe.parameters.items()
    }
    try:
        parameters = recipe.typed({})
        origin = recipe.origin(parameters, said)
        planned = plan_task(recipe.build(parameters, recipe.config), recipe.config, origin=origin)
    except SurestepError as error:
        print(f"The defaults are not known: {error}", file=sys.stderr)
        return hints
    for option, value, reason in planned.plan.decisions:
        hints[option] = f"({value}: {reason})"
    for name, value in recipe.config.said().items():
        hints.setdefault(name, f"({value}: said: recipe {recipe.name})")
    hints.setdefault("epochs", "(not said: max_steps decides)")
    hints.setdefault("max_steps", "(not said: epochs decide)")
    for name, _ in options():
        hints.setdefault(name, "(None: not an option of what was chosen)")
    return hints
